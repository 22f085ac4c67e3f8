// Runs as Python starts them, and what they found.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "bindings/bindings.hpp"
#include "bindings/memory.hpp"
#include "machine/machine.hpp"
#include "timing/trace.hpp"

namespace emulator {

namespace {

// What a run found and did.
struct RunReport {
  std::vector<Finding> findings;
  std::vector<SuspectRead> suspects;
  u64 instructions = 0, ctas = 0;
  bool stopped = false, waited = false, held = false;
  std::vector<TraceRow> trace;
  std::vector<u64> traced_ctas;
  u32 tokens = 0;
};

using Triple = std::array<u32, 3>;

// -1 where there is none.
i64 index_of(u32 instruction) { return instruction == kNoInstruction ? -1 : static_cast<i64>(instruction); }

RunReport run(const Program& program, Memory& memory, const Triple& grid, const Triple& block, const Triple& cluster,
              u32 dynamic_smem, nb::bytes parameters, bool dependent, u32 interleaving, u64 seed, bool races, u32 poison,
              u64 most_instructions, double deadline_s, std::vector<u64> ctas,
              const std::vector<std::tuple<u32, u32, u32>>& poisoned, u32 running, u32 running_after, u32 number, u32 sms,
              u32 warp_slots, bool taint, u64 traced) {
  Launch launch;
  u64 threads = 1, size = 1, total = 1;
  for (int i = 0; i < 3; ++i) {
    launch.grid[i] = grid[i];
    launch.block[i] = block[i];
    launch.cluster[i] = cluster[i];
    const u32 most_ctas = i ? 0xFFFF : 0x7FFFFFFF;
    if (block[i] > 1024 || cluster[i] > 16 || grid[i] > most_ctas) throw std::invalid_argument("the launch is out of bounds");
    if (!cluster[i] || grid[i] % cluster[i]) throw std::invalid_argument("the grid is not a multiple of the cluster");
    threads *= block[i];
    size *= cluster[i];
    total *= grid[i];
  }
  if (!threads || threads > 1024 || !size || size > 16 || !total || total >= 1ull << 31) {
    throw std::invalid_argument("the launch is out of bounds");
  }
  if (dynamic_smem > 1 << 20) throw std::invalid_argument("the launch asks for too much shared memory");
  for (u64 cta : ctas) {
    if (cta >= total) throw std::invalid_argument("a selected CTA lies outside the grid");
  }
  launch.dynamic_smem = dynamic_smem;
  if (!sms || !warp_slots || !number || number >= 32) throw std::invalid_argument("the launch is out of bounds");
  launch.running = running | (dependent ? kRunningOthers : 0);
  launch.running_after = running_after;
  launch.number = number;
  launch.sms = sms;
  launch.warp_slots = warp_slots;
  const auto* bytes = static_cast<const u8*>(parameters.data());
  launch.parameters.assign(bytes, bytes + parameters.size());
  Options options;
  options.interleaving = static_cast<Interleaving>(std::min<u32>(interleaving, 2));
  options.seed = seed;
  options.races = races;
  options.taint = races && taint;
  options.poison = static_cast<u8>(poison);
  options.most_instructions = most_instructions;
  options.deadline_s = deadline_s;
  std::set<SuspectRead> reads;
  for (const auto& [cta, warp, moment] : poisoned) reads.insert({cta, warp, moment});
  RunReport found;
  nb::gil_scoped_release unlocked;
  std::optional<Program> watched;
  if (options.taint) {
    watched = with_taint(program);
    memory.follow();
  }
  Run made(watched ? *watched : program, launch, options, memory.buffers, memory.maps, std::move(ctas), std::move(reads));
  Trace trace(traced);
  if (traced) made.trace = &trace;
  made.execute();
  found.trace = std::move(trace.rows);
  found.traced_ctas = std::move(trace.ctas);
  found.tokens = trace.tokens;
  found.findings = made.report.findings();
  found.suspects.assign(made.suspects.begin(), made.suspects.end());
  found.instructions = made.instructions;
  found.ctas = made.ctas_run;
  found.stopped = made.stopped;
  found.waited = made.waited;
  found.held = made.held;
  return found;
}

// Rows of a trace, field by field: whoever looks at one field of all rows then reads no others.
nb::bytes columns_of(const RunReport& found) {
  constexpr u32 TraceRow::* kFields[] = {&TraceRow::stream, &TraceRow::kind,  &TraceRow::gap,   &TraceRow::instruction,
                                         &TraceRow::amount, &TraceRow::parts, &TraceRow::token, &TraceRow::lanes};
  constexpr std::size_t kCount = std::size(kFields);
  const std::size_t count = found.trace.size();
  PyObject* made = PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(count * (4 * kCount + 8)));
  if (!made) throw nb::python_error();
  char* to = PyBytes_AS_STRING(made);
  for (std::size_t row = 0; row < count; ++row) {
    for (std::size_t field = 0; field < kCount; ++field)
      std::memcpy(to + 4 * (field * count + row), &(found.trace[row].*kFields[field]), 4);
    std::memcpy(to + 4 * kCount * count + 8 * row, &found.trace[row].address, 8);
  }
  return nb::steal<nb::bytes>(made);
}

}  // namespace

void bind_run(nb::module_& module) {
  nb::enum_<BarrierKind>(module, "BarrierKind", nb::is_arithmetic(), "What a warp waits at.")
      .value("NONE", BarrierKind::kNone)
      .value("MBARRIER", BarrierKind::kMBarrier)
      .value("NAMED", BarrierKind::kNamed)
      .value("CLUSTER", BarrierKind::kCluster);
  nb::class_<AwaitedBarrier>(module, "AwaitedBarrier")
      .def_ro("kind", &AwaitedBarrier::kind)
      .def_ro("address", &AwaitedBarrier::address)
      .def_ro("phase", &AwaitedBarrier::phase)
      .def_ro("expected", &AwaitedBarrier::expected)
      .def_ro("missing", &AwaitedBarrier::missing)
      .def_ro("missing_bytes", &AwaitedBarrier::missing_bytes)
      .def_ro("announced", &AwaitedBarrier::announced)
      .def_prop_ro("initialised", [](const AwaitedBarrier& at) { return index_of(at.initialised); })
      .def_prop_ro("arrived", [](const AwaitedBarrier& at) { return index_of(at.arrived); })
      .def_prop_ro("announcing", [](const AwaitedBarrier& at) { return index_of(at.announcing); })
      .def_prop_ro("alike", [](const AwaitedBarrier& at) { return index_of(at.alike); })
      .def_prop_ro("delivering", [](const AwaitedBarrier& at) { return index_of(at.delivering); });
  nb::class_<WaitingWarp>(module, "WaitingWarp")
      .def_ro("barrier", &WaitingWarp::barrier)
      .def_prop_ro("cta", [](const WaitingWarp& at) { return std::tuple(at.cta[0], at.cta[1], at.cta[2]); })
      .def_ro("warp", &WaitingWarp::warp)
      .def_ro("instruction", &WaitingWarp::instruction);
  nb::class_<Finding>(module, "Finding")
      .def_ro("kind", &Finding::kind)
      .def_ro("message", &Finding::message)
      .def_prop_ro("instruction", [](const Finding& found) { return index_of(found.instruction); })
      .def_prop_ro("other", [](const Finding& found) { return index_of(found.other); })
      .def_prop_ro("cta", [](const Finding& found) { return std::tuple(found.cta[0], found.cta[1], found.cta[2]); })
      .def_ro("warp", &Finding::warp)
      .def_ro("lanes", &Finding::lanes)
      .def_ro("address", &Finding::address)
      .def_ro("suspect", &Finding::suspect)
      .def_ro("count", &Finding::count)
      .def_ro("waiting", &Finding::waiting)
      .def_ro("more_waiting", &Finding::more_waiting);
  nb::class_<RunReport>(module, "RunReport")
      .def_ro("findings", &RunReport::findings)
      .def_prop_ro("suspects",
                   [](const RunReport& found) {
                     std::vector<std::tuple<u32, u32, u32>> reads;
                     for (const SuspectRead& read : found.suspects) reads.emplace_back(read.cta, read.warp, read.moment);
                     return reads;
                   })
      .def_ro("instructions", &RunReport::instructions)
      .def_ro("ctas", &RunReport::ctas)
      .def_ro("stopped", &RunReport::stopped)
      .def_ro("waited", &RunReport::waited)
      .def_ro("held", &RunReport::held)
      .def_ro("traced_ctas", &RunReport::traced_ctas)
      .def_ro("tokens", &RunReport::tokens)
      .def("trace", &columns_of,
           "The rows of the trace: a column of 32 bits for each field, one after another, then addresses.");
  module.def("run", &run, nb::arg("program"), nb::arg("memory"), nb::arg("grid"), nb::arg("block"), nb::arg("cluster"),
             nb::arg("dynamic_smem"), nb::arg("parameters"), nb::arg("dependent"), nb::arg("interleaving"), nb::arg("seed"),
             nb::arg("races"), nb::arg("poison"), nb::arg("most_instructions"), nb::arg("deadline_s"), nb::arg("ctas"),
             nb::arg("poisoned"), nb::arg("running") = 0, nb::arg("running_after") = 0, nb::arg("number") = 1,
             nb::arg("sms") = 132, nb::arg("warp_slots") = 64, nb::arg("taint") = false, nb::arg("traced") = 0);
}

}  // namespace emulator
