// The buffers and tensor maps that kernels are launched with.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "machine/address_space.hpp"

namespace nb = nanobind;

namespace emulator {

// Keeps the arrays alive.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;

  void add_buffer(const std::string& name, u64 base, nb::object array, bool writable, bool constant, u64 written_bytes,
                  u32 piece_bytes);
  void add_map(u64 address, u32 type, u32 element_bytes, u32 swizzle, const std::vector<u64>& sizes,
               const std::vector<u64>& strides, const std::vector<u32>& box, bool nan_fill);

  // Gives buffers other addresses, by their names. Their tensor maps follow them.
  void move(const std::vector<std::pair<std::string, u64>>& bases);

  // Before each kernel that follows another on the same memory.
  void settle();

  // Ranges of bytes of the named buffer that the launch of that number wrote last; 0: that were read unwritten.
  std::vector<std::pair<u64, u64>> ranges(const std::string& name, u32 launch) const;

  // Forgets what has been written: the first `written_bytes` of the named buffer hold something.
  void renew(const std::string& name, u64 written_bytes);

  // Before a launch that follows old contents.
  void follow();

  // What kernels left in a buffer that depends on old contents: (offset, bytes, launch, instruction).
  std::vector<std::tuple<u64, u64, u32, u32>> tainted(const std::string& name) const;

  std::vector<Buffer> buffers;
  std::vector<TensorMap> maps;

 private:
  std::vector<nb::object> arrays_;
};

}  // namespace emulator
