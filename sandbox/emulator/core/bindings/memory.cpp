#include "bindings/memory.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings/bindings.hpp"

namespace emulator {

namespace {

using Bytes = nb::ndarray<u8, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

}  // namespace

void Memory::add_buffer(const std::string& name, u64 base, nb::object array, bool writable, bool constant, u64 written_bytes,
                        u32 piece_bytes) {
  if (piece_bytes != 1 && piece_bytes != 2) throw std::invalid_argument("a piece of a buffer has one or two bytes");
  const auto bytes = nb::cast<Bytes>(array);
  Buffer buffer;
  buffer.name = name;
  buffer.base = base;
  buffer.size = bytes.size();
  buffer.host = bytes.data();
  buffer.writable = writable;
  buffer.constant = constant;
  buffer.written_bytes = written_bytes;
  buffer.piece_bytes = piece_bytes;
  if (writable) buffer.shadow = std::make_unique<GlobalShadow>(buffer.size, written_bytes, piece_bytes);
  buffers.push_back(std::move(buffer));
  arrays_.push_back(std::move(array));
}

void Memory::add_map(u64 address, u32 type, u32 element_bytes, u32 swizzle, const std::vector<u64>& sizes,
                     const std::vector<u64>& strides, const std::vector<u32>& box, bool nan_fill) {
  if (sizes.empty() || sizes.size() > 5 || strides.size() != sizes.size() || box.size() != sizes.size() || !element_bytes) {
    throw std::invalid_argument("a tensor map has 1 to 5 dimensions, each with a size, a stride and a box");
  }
  TensorMap map;
  map.rank = static_cast<u32>(sizes.size());
  map.type = type;
  map.element_bytes = element_bytes;
  map.swizzle = swizzle;
  map.address = address;
  map.nan_fill = nan_fill;
  u64 bytes = element_bytes;
  for (u32 i = 0; i < map.rank; ++i) {
    map.sizes[i] = sizes[i];
    map.strides[i] = strides[i];
    map.box[i] = box[i];
    bytes *= box[i];
    if (!box[i] || box[i] > 256 || bytes > 1 << 20) throw std::invalid_argument("a tensor map's box is empty or too large");
  }
  maps.push_back(map);
}

void Memory::move(const std::vector<std::pair<std::string, u64>>& bases) {
  std::vector<std::pair<u64*, u64>> moved;  // by where the old addresses were
  for (const auto& [name, base] : bases) {
    for (Buffer& buffer : buffers) {
      if (buffer.name != name) continue;
      for (TensorMap& map : maps) {
        if (map.address - buffer.base < buffer.size) moved.emplace_back(&map.address, base + (map.address - buffer.base));
      }
      moved.emplace_back(&buffer.base, base);
    }
  }
  for (const auto& [address, to] : moved) *address = to;
}

void Memory::settle() {
  for (Buffer& buffer : buffers) {
    if (buffer.shadow) buffer.shadow->settle();
  }
}

std::vector<std::pair<u64, u64>> Memory::ranges(const std::string& name, u32 launch) const {
  for (const Buffer& buffer : buffers) {
    if (buffer.name == name && buffer.shadow) return buffer.shadow->ranges(launch);
  }
  return {};
}

void Memory::renew(const std::string& name, u64 written_bytes) {
  for (Buffer& buffer : buffers) {
    if (buffer.name != name || !buffer.shadow) continue;
    buffer.shadow = std::make_unique<GlobalShadow>(buffer.size, written_bytes, buffer.piece_bytes);
    buffer.written_bytes = written_bytes;
    buffer.taint.reset();
  }
}

void Memory::follow() {
  for (Buffer& buffer : buffers) {
    if (!buffer.writable) continue;
    if (buffer.taint) {
      ++buffer.taint->launch;
    } else {
      buffer.taint = std::make_unique<GlobalTaint>(buffer.size, buffer.written_bytes);
    }
  }
}

std::vector<std::tuple<u64, u64, u32, u32>> Memory::tainted(const std::string& name) const {
  std::vector<std::tuple<u64, u64, u32, u32>> found;
  for (const Buffer& buffer : buffers) {
    if (buffer.name != name || !buffer.taint) continue;
    for (const auto& left : buffer.taint->left()) found.emplace_back(left.offset, left.bytes, left.launch, left.instruction);
  }
  return found;
}

void bind_memory(nb::module_& module) {
  nb::class_<Memory>(module, "Memory")
      .def(nb::init<>())
      .def("add_buffer", &Memory::add_buffer, nb::arg("name"), nb::arg("base"), nb::arg("array"), nb::arg("writable"),
           nb::arg("constant") = false, nb::arg("written_bytes") = 0, nb::arg("piece_bytes") = 2)
      .def("add_map", &Memory::add_map, nb::arg("address"), nb::arg("type"), nb::arg("element_bytes"), nb::arg("swizzle"),
           nb::arg("sizes"), nb::arg("strides"), nb::arg("box"), nb::arg("nan_fill") = false)
      .def("move", &Memory::move, nb::arg("bases"))
      .def("settle", &Memory::settle)
      .def("ranges", &Memory::ranges, nb::arg("name"), nb::arg("launch"))
      .def("tainted", &Memory::tainted, nb::arg("name"))
      .def("renew", &Memory::renew, nb::arg("name"), nb::arg("written_bytes"));
}

}  // namespace emulator
