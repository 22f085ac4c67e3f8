// Programs as Python makes them.
#include "machine/program.hpp"

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

using ConstBytes = nb::ndarray<const u8, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const u32, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Program make_program(ConstBytes table, Numbers lists, ConstBytes constants, u32 register_bytes,
                     const std::vector<std::pair<u32, u32>>& specials,
                     const std::vector<std::tuple<u32, u32, u32, bool>>& symbols, u32 static_smem_end, u32 local_bytes,
                     std::vector<std::vector<u32>> tracked_reads, std::vector<std::vector<u32>> tracked_writes) {
  Program program;
  const std::size_t count = table.size() / sizeof(OpRecord);
  program.ops.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    OpRecord record;
    std::memcpy(&record, table.data() + i * sizeof record, sizeof record);
    static_cast<OpRecord&>(program.ops[i]) = record;
    const Registered* entry = registry().find(record.handler);
    program.ops[i].run = entry ? entry->run : nullptr;
  }
  program.lists.assign(lists.data(), lists.data() + lists.size());
  program.constants.assign(constants.data(), constants.data() + constants.size());
  program.register_bytes = register_bytes;
  for (const auto& [slot, which] : specials) program.specials.push_back({slot, which});
  for (const auto& [slot, bytes, offset, generic] : symbols) program.symbols.push_back({slot, bytes, offset, generic});
  program.static_smem_end = static_smem_end;
  program.local_bytes = local_bytes;
  program.tracked_reads = std::move(tracked_reads);
  program.tracked_writes = std::move(tracked_writes);
  if (local_bytes > 1 << 20 || static_smem_end > 1 << 20) throw std::invalid_argument("the program asks for too much memory");
  check(program);
  return program;
}

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<Program>(module, "Program")
      .def_static("make", &make_program, nb::arg("table"), nb::arg("lists"), nb::arg("constants"), nb::arg("register_bytes"),
                  nb::arg("specials"), nb::arg("symbols"), nb::arg("static_smem_end"), nb::arg("local_bytes"),
                  nb::arg("tracked_reads"), nb::arg("tracked_writes"));
}

}  // namespace emulator
