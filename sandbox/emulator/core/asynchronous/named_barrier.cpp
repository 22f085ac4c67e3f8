// bar: the sixteen named barriers of a CTA.
#include <utility>

#include "asynchronous/reduction.hpp"
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kResult = optional(slot("result", Field::kD, 4));  // of bar.red: a count, or a predicate
constexpr Operand kNumber = slot("barrier", Field::kA, 4);
constexpr Operand kThreads = optional(slot("threads", Field::kB, 4));  // all of the CTA where there is none
constexpr Operand kPredicate = optional(slot("predicate", Field::kC, kMask));
constexpr Operand kReduction = optional(number("reduction", Field::kP, "BarrierReduction"));

void write_reduction(const NamedBarrier& barrier, const NamedBarrier::Waiting& waiting) {
  Warp& warp = *waiting.warp;
  const Op& op = *waiting.op;
  switch (kReduction(op)) {
    case kReduceAnd:
    case kReduceOr: {
      const bool holds = kReduction(op) == kReduceAnd ? barrier.holding == barrier.arrived : barrier.holding > 0;
      u32& result = warp.mask(kResult(op));
      result = holds ? result | waiting.lanes : result & ~waiting.lanes;
      break;
    }
    case kReducePopc:
      for_lanes(waiting.lanes, [&](int lane) { warp.lanes<u32>(kResult(op))[lane] = barrier.holding; });
      break;
    default:
      break;
  }
}

void open_if_complete(Cta& cta, NamedBarrier& barrier) {
  if (!barrier.open) return;
  const u32 expected = barrier.expected ? barrier.expected : live_lanes(cta);
  if (barrier.arrived < expected) return;
  for (const NamedBarrier::Waiting& waiting : barrier.waiting) {
    write_reduction(barrier, waiting);
    waiting.warp->acquire_at_barrier(barrier.gathered, waiting.lanes);
    waiting.warp->blocked &= ~waiting.lanes;
  }
  barrier = NamedBarrier();
  ++cta.cluster->run->events;
  ++cta.cluster->run->barrier_events;
}

// Lanes arrive; null after a report.
NamedBarrier* arrive(Warp& warp, const Op& op, u32 mask) {
  if (op.flags & kCollective) require_whole_warp(warp, op, mask);
  const int lane = first_lane(mask);
  const u32 number = warp.lanes<u32>(kNumber(op))[lane];
  const u32 expected = kThreads(op) ? warp.lanes<u32>(kThreads(op))[lane] : 0;
  if (number > 15) {
    report(warp, op, mask, detector::kBarrierMisuse, 0, "barrier " + std::to_string(number) + "; the valid ones are 0 to 15");
    return nullptr;
  }
  if (kThreads(op) && (expected == 0 || expected % kLanes)) {
    report(
        warp, op, mask, detector::kBarrierMisuse, 0,
        "barrier " + std::to_string(number) + " for " + std::to_string(expected) + " threads, not a multiple of the warp's 32");
    return nullptr;
  }
  NamedBarrier& barrier = warp.cta->barriers[number];
  if (barrier.open && barrier.expected != expected) {
    report(warp, op, mask, detector::kBarrierMisuse, 0,
           "barrier " + std::to_string(number) + " for " + std::to_string(expected) +
               " threads, while other threads wait there for " + std::to_string(barrier.expected));
  }
  barrier.open = true;
  barrier.expected = expected;
  barrier.arrived += std::popcount(mask);
  if (kPredicate(op)) barrier.holding += std::popcount(mask & warp.mask(kPredicate(op)));
  if (expected && barrier.arrived > expected) {
    report(warp, op, mask, detector::kBarrierMisuse, 0,
           std::to_string(barrier.arrived) + " threads arrive at barrier " + std::to_string(number) + ", which is for " +
               std::to_string(expected));
  }
  barrier.gathered.join(warp.now());
  ++warp.run->events;
  ++warp.run->barrier_events;
  return &barrier;
}

void bar_sync(Warp& warp, const Op& op, u32 mask) {
  NamedBarrier* barrier = arrive(warp, op, mask);
  if (!barrier) return;
  barrier->waiting.push_back({&warp, mask, &op});
  warp.blocked |= mask;
  open_if_complete(*warp.cta, *barrier);
}

void bar_arrive(Warp& warp, const Op& op, u32 mask) {
  if (NamedBarrier* barrier = arrive(warp, op, mask)) open_if_complete(*warp.cta, *barrier);
}

bool waits(const OpRecord& op) { return op.kind == kWaiting; }

}  // namespace

void open_named_barriers(Cta& cta) {
  for (NamedBarrier& barrier : cta.barriers) open_if_complete(cta, barrier);
}

void register_named_barrier(Registry& to) {
  to.add("bar.sync", bar_sync, {kResult, kNumber, kThreads, kPredicate, kReduction}, waits);
  to.add("bar.arrive", bar_arrive, {kNumber, kThreads});
}

}  // namespace emulator
