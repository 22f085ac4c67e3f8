// The parts of TVM-FFI's tensor view that a host launcher uses.
#pragma once
#include <cstdint>

enum DLDeviceType { kDLCPU = 1, kDLCUDA = 2 };
enum DLDataTypeCode { kDLInt = 0, kDLFloat = 2, kDLBfloat = 4 };
struct DLDevice {
  DLDeviceType device_type;
  int32_t device_id;
};
struct DLDataType {
  uint8_t code, bits;
  uint16_t lanes;
};

namespace tvm::ffi {

struct TensorView {
  void* data_;
  int64_t sizes_[2], strides_[2];
  DLDataType dtype_{kDLFloat, 16, 1};
  DLDevice device_{kDLCUDA, 0};

  void* data_ptr() const { return data_; }
  int32_t ndim() const { return 2; }
  int64_t size(int64_t index) const { return sizes_[index]; }
  int64_t stride(int64_t index) const { return strides_[index]; }
  DLDataType dtype() const { return dtype_; }
  DLDevice device() const { return device_; }
};

}  // namespace tvm::ffi
