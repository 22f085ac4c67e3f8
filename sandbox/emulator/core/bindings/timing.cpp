// Traces of runs, and their replay in time.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings/bindings.hpp"
#include "timing/replay.hpp"
#include "timing/trace.hpp"

namespace emulator {

namespace {

constexpr std::size_t kNumbers = 9, kTimes = 6;
template <typename T, std::size_t kColumns>
using Columns = nb::ndarray<const T, nb::shape<kColumns, -1>, nb::c_contig, nb::device::cpu>;

StepColumns columns_of(const Columns<u32, kNumbers>& numbers, const Columns<float, kTimes>& times) {
  const std::size_t count = numbers.shape(1);
  if (times.shape(1) != count) throw std::invalid_argument("steps with other numbers than times");
  const auto number = [&](std::size_t column) { return numbers.data() + column * count; };
  const auto time = [&](std::size_t column) { return times.data() + column * count; };
  return {.count = count,
          .stream = number(0),
          .wait = number(1),
          .give = number(2),
          .flags = number(3),
          .track = number(4),
          .phase = number(5),
          .first = number(6),
          .second = number(7),
          .third = number(8),
          .own = time(0),
          .issue = time(1),
          .first_time = time(2),
          .second_time = time(3),
          .third_time = time(4),
          .latency = time(5)};
}

Replayed replay_turns(const Columns<u32, kNumbers>& numbers, const Columns<float, kTimes>& times, u32 count, u32 resident,
                      u32 tokens, float pause, const std::vector<u32>& issues, u32 resources) {
  const StepColumns cluster = columns_of(numbers, times);
  nb::gil_scoped_release unlocked;
  return replay(cluster, {.count = count, .resident = resident, .tokens = tokens, .pause = pause}, issues, resources);
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
      .def_ro("busy", &Replayed::busy)
      .def_ro("marks", &Replayed::marks)
      .def_ro("complete", &Replayed::complete)
      .def_ro("phase_begins", &Replayed::phase_begins)
      .def_ro("phase_ends", &Replayed::phase_ends);
  module.attr("step_numbers") = nb::make_tuple("stream", "wait", "give", "flags", "track", "phase", "first", "second", "third");
  module.attr("step_times") = nb::make_tuple("own", "issue", "first_time", "second_time", "third_time", "latency");
  module.def(
      "replay_turns", &replay_turns, nb::arg("numbers"), nb::arg("times"), nb::arg("count"), nb::arg("resident"),
      nb::arg("tokens"), nb::arg("pause"), nb::arg("issues"), nb::arg("resources"),
      "Replays clusters one after the other, by the steps of one: a row for each of `step_numbers`, and of `step_times`.");
}

}  // namespace emulator
