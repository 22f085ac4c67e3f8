// Traces of runs, and their replay in time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cstring>

#include "bindings/bindings.hpp"
#include "timing/replay.hpp"
#include "timing/trace.hpp"

namespace emulator {

namespace {

using ConstBytes = nb::ndarray<const u8, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

Replayed replay_steps(ConstBytes table, const std::vector<double>& starts, const std::vector<u32>& issues, u32 tokens,
                      u32 resources) {
  std::vector<Step> steps(table.size() / sizeof(Step));
  std::memcpy(steps.data(), table.data(), steps.size() * sizeof(Step));
  nb::gil_scoped_release unlocked;
  return replay(steps, starts, issues, tokens, resources);
}

// `issues`: of the streams of one cluster. `tokens`: the token of its end, behind its own.
Replayed replay_turns(ConstBytes table, u32 count, u32 resident, u32 tokens, float pause, const std::vector<u32>& issues,
                      u32 resources) {
  const u32 streams = static_cast<u32>(issues.size());
  const Turns turns{.count = count, .resident = resident, .streams = streams, .tokens = tokens, .pause = pause};
  nb::gil_scoped_release unlocked;
  std::vector<Step> cluster(table.size() / sizeof(Step));
  std::memcpy(cluster.data(), table.data(), cluster.size() * sizeof(Step));
  std::vector<u32> all;
  for (u32 turn = 0; turn < count; ++turn) all.insert(all.end(), issues.begin(), issues.end());
  const std::vector<double> starts(all.size());
  return replay(steps_of_turns(cluster.data(), cluster.size(), turns), starts, all, (tokens + 1) * count + 1, resources);
}

}  // namespace

void bind_timing(nb::module_& module) {
  nb::enum_<TraceKind>(module, "TraceKind", nb::is_arithmetic(), "What a row of a trace records.")
      .value("END", kTraceEnd)
      .value("WAIT", kTraceWait)
      .value("ARRIVE", kTraceArrive)
      .value("BULK_LOAD", kTraceBulkLoad)
      .value("BULK_TARGET", kTraceBulkTarget)
      .value("BULK_SHARED", kTraceBulkShared)
      .value("BULK_STORE", kTraceBulkStore)
      .value("PRODUCT", kTraceProduct)
      .value("FRAGMENTS", kTraceFragments)
      .value("LOAD", kTraceLoad)
      .value("STORE", kTraceStore)
      .value("ATOMIC", kTraceAtomic)
      .value("SHARED_LOAD", kTraceSharedLoad)
      .value("SHARED_STORE", kTraceSharedStore)
      .value("REMOTE_LOAD", kTraceRemoteLoad)
      .value("REMOTE_STORE", kTraceRemoteStore)
      .value("COPY", kTraceCopy)
      .value("COMMIT", kTraceCommit)
      .value("FENCE", kTraceFence)
      .value("DEPENDENCY", kTraceDependency)
      .value("TRIGGER", kTraceTrigger);
  nb::enum_<StepFlag>(module, "StepFlag", nb::is_arithmetic(), nb::is_flag(), "How a step takes effect.")
      .value("HOLD", kHold)
      .value("BLOCK", kBlock)
      .value("DRAIN", kDrain)
      .value("OF_TRACK", kOfTrack)
      .value("TOGETHER", kTogether)
      .value("MARK", kMark);
  nb::class_<Replayed>(module, "Replayed")
      .def_ro("end", &Replayed::end)
      .def_ro("ends", &Replayed::ends)
      .def_ro("waited", &Replayed::waited)
      .def_ro("busy", &Replayed::busy)
      .def_ro("marks", &Replayed::marks)
      .def_ro("complete", &Replayed::complete);
  module.def("replay", &replay_steps, nb::arg("steps"), nb::arg("starts"), nb::arg("issues"), nb::arg("tokens"),
             nb::arg("resources"));
  module.def("replay_turns", &replay_turns, nb::arg("steps"), nb::arg("count"), nb::arg("resident"), nb::arg("tokens"),
             nb::arg("pause"), nb::arg("issues"), nb::arg("resources"),
             "Replays clusters one after the other, by the steps of one. The end of each is the token behind its own.");
}

}  // namespace emulator
