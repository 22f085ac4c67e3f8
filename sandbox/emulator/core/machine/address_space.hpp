// State spaces and their addresses, buffers in global memory, and tensor maps.
#pragma once

#include <memory>
#include <string>

#include "bits.hpp"
#include "order/shadow.hpp"
#include "taint/taint.hpp"

namespace emulator {

// Shared memory has 32-bit addresses with the CTA rank in the upper 8 bits. It starts after the kilobyte that the system
// reserves. Generic addresses of the other spaces lie in separate windows.
constexpr u32 kSharedBase = 1024;
constexpr u32 kRankShift = 24;
constexpr u32 kOffsetMask = (1u << kRankShift) - 1;
constexpr u64 kWindow = 1ull << 32;
// Drawn when the process starts, as a driver does, so that no kernel can recognise the emulator by them.
extern const u64 kSharedWindow, kParamWindow, kLocalWindow;

enum Space : u32 { kGeneric, kGlobal, kShared, kParam, kLocal, kConst };

struct Buffer {
  std::string name;
  u64 base = 0, size = 0;
  u8* host = nullptr;
  bool writable = false;
  bool constant = false;  // part of the program: no preceding kernel can have written it
  std::unique_ptr<GlobalShadow> shadow;
  u64 written_bytes = 0;  // initialised before the first kernel
  u32 piece_bytes = 2;    // of the shadow
  std::unique_ptr<GlobalTaint> taint;
};

// A tensor map as the plan describes it. Kernels see 128 opaque bytes, which begin with a magic number and an index.
constexpr u64 kTensorMapMagic = 0x70616D726F736E74ull;
constexpr u32 kTensorMapBytes = 128;
struct TensorMap {
  u32 rank = 0, element_bytes = 0, swizzle = 0;  // swizzle: 0, 32, 64, 128 bytes
  u32 type = 0;                                  // TensorType
  u64 address = 0;
  u64 sizes[5] = {}, strides[5] = {};  // strides in bytes, [0] is the element's
  u32 box[5] = {}, element_strides[5] = {};
  bool nan_fill = false;
};
enum TensorType : u32 { kTypeU8, kTypeU16, kTypeU32, kTypeI32, kTypeU64, kTypeI64, kTypeF16, kTypeF32, kTypeF64, kTypeBf16 };

}  // namespace emulator
