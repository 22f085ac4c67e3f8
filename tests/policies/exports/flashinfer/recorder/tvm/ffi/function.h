#pragma once
#define TVM_FFI_DLL_EXPORT_TYPED_FUNC(name, function) [[maybe_unused]] static auto* const exported_##name = &function;
