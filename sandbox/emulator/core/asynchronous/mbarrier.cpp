// mbarriers: barriers in shared memory that count arrivals and bytes of asynchronous copies.
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kMbarrier = address("mbarrier", Field::kA, Field::kP, Field::kImm);
constexpr Operand kGenericMbarrier = number("generic", Field::kQ);
constexpr Operand kExpected = slot("arrivals", Field::kB, 4);            // of mbarrier.init
constexpr Operand kArrivals = optional(slot("arrivals", Field::kB, 4));  // one where there is none
constexpr Operand kAnnounced = optional(slot("expected_bytes", Field::kC, 4));
constexpr Operand kState = optional(slot("state", Field::kD, 8));         // the state before
constexpr Operand kRelaxedArrival = number("relaxed", Field::kR);         // nothing is released
constexpr Operand kDrop = number("drop", Field::kS);                      // the arrivals drop the expected count too
constexpr Operand kNoComplete = number("no_complete", Field::kS, "", 1);  // they may not complete the phase
constexpr Operand kTransactionBytes = slot("bytes", Field::kC, 4);
constexpr Operand kComplete = number("complete", Field::kS);  // the bytes are delivered, not expected
constexpr Operand kDone = slot("done", Field::kD, kMask);
// A parity of 4 bytes, or a state of 8.
constexpr Operand kPhaseParity = slot("phase", Field::kB, 4), kPhaseState = slot("phase", Field::kB, 8);
constexpr Operand kOutstanding = slot("result", Field::kD, 4), kGivenState = slot("state", Field::kA, 8);

constexpr u32 kCountBits = 20;  // of the arrival count

u32 barrier_address(Warp& warp, const Op& op, int lane) {
  const u64 address = lane_address(warp, kMbarrier(op), kMbarrier.bytes_of(op), lane) + static_cast<u64>(op.imm);
  return static_cast<u32>(kGenericMbarrier(op) ? address - kSharedWindow : address);
}

void mbarrier_init(Warp& warp, const Op& op, u32 mask) {
  Cta& cta = *warp.cta;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 address = barrier_address(warp, op, lane), offset = address & kOffsetMask,
              count = warp.lanes<u32>(kExpected(op))[lane];
    if (cta_of(warp, address) != &cta || offset < kSharedBase || offset + 8 > cta.smem_end || offset % 8) {
      report(warp, op, 1u << lane, detector::kSharedOutOfBounds, address,
             "an mbarrier outside shared memory, or not on 8 bytes");
      continue;
    }
    if (!count || count >= 1u << kCountBits) {
      report(warp, op, 1u << lane, detector::kBarrierMisuse, address, "an mbarrier for " + std::to_string(count) + " arrivals");
      continue;
    }
    if (cta.cluster->agents.size() >= kMaxAgents) {
      warp.run->stop(detector::kUnsupported, "a cluster that initialises thousands of mbarriers");
      return;
    }
    MBarrier barrier;
    barrier.component = static_cast<u32>(cta.cluster->agents.size());
    cta.cluster->agents.push_back({AgentKind::kBarrier, cta.rank, warp.index});
    barrier.expected = barrier.pending = count;
    barrier.initialised = {warp.component, warp.moment};
    barrier.instruction = op.instruction;
    if (warp.run->options.races) cta.shadow.mark_barrier(offset, true);
    cta.mbarriers[offset] = std::move(barrier);
  }
}

void mbarrier_inval(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 address = barrier_address(warp, op, lane);
    if (!mbarrier_at(warp, op, lane, address, false)) continue;
    Cta& cta = *cta_of(warp, address);
    cta.invalidated.push_back(cta.mbarriers.extract(address & kOffsetMask));
    cta.found = nullptr;
    if (warp.run->options.races) cta.shadow.mark_barrier(address & kOffsetMask, false);
  }
}

void announce(Warp& warp, const Op& op, int lane, MBarrier& barrier, i64 bytes) {
  barrier.transactions += bytes;
  if (bytes > 0) barrier.announced += bytes;
  (bytes > 0 ? barrier.announced_at : barrier.delivered_at) = op.instruction;
  if (barrier.transactions >= 1 << 20 || barrier.transactions <= -(1 << 20)) {
    report(warp, op, 1u << lane, detector::kTransactionMismatch, 0, "more than 2^20 - 1 bytes are expected at one mbarrier");
    barrier.transactions = 0;
  }
}

// An arrival at an mbarrier of a peer, or bytes announced there. It is under way until that phase is over, or until the peer
// acquires what this warp has released behind it.
void note_remote(Warp& warp, const Op& op, int lane, const MBarrier& barrier) {
  const u32 address = barrier_address(warp, op, lane);
  Cta& cta = *cta_of(warp, address);
  if (&cta == warp.cta || !warp.run->options.races) return;
  cta.remote.note({{warp.component, warp.moment},
                   {barrier.component, static_cast<u32>(barrier.phase) + 1},
                   Access::kWrite,
                   op.instruction,
                   static_cast<u32>(lane),
                   address});
}

// The opaque state: the phase and its pending arrivals.
u64 state_of(const MBarrier& barrier) { return barrier.phase << kCountBits | barrier.pending; }

void mbarrier_arrive(Warp& warp, const Op& op, u32 mask) {
  Run& run = *warp.run;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, barrier_address(warp, op, lane), false);
    if (!barrier) continue;
    const u32 count = kArrivals(op) ? warp.lanes<u32>(kArrivals(op))[lane] : 1;
    if (kState(op)) warp.lanes<u64>(kState(op))[lane] = state_of(*barrier);
    if (kAnnounced(op)) announce(warp, op, lane, *barrier, warp.lanes<u32>(kAnnounced(op))[lane]);
    if (count > barrier->pending || (kNoComplete(op) & 1 && count == barrier->pending)) {
      report(warp, op, 1u << lane, detector::kBarrierMisuse, barrier_address(warp, op, lane),
             std::to_string(count) + " arrivals at an mbarrier that expects " + std::to_string(barrier->pending) + " more of " +
                 std::to_string(barrier->expected));
      continue;
    }
    note_remote(warp, op, lane, *barrier);
    barrier->pending -= count;
    barrier->arrived_at = op.instruction;
    if (kDrop(op) & 1) barrier->expected -= std::min(count, barrier->expected);
    if (!kRelaxedArrival(op) && run.ordered()) barrier->open.join(warp.now());
    settle_phase(run, *barrier);
  }
  ++run.events;
}

void mbarrier_expect(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, barrier_address(warp, op, lane), false);
    if (!barrier) continue;
    const i64 bytes = warp.lanes<u32>(kTransactionBytes(op))[lane];
    note_remote(warp, op, lane, *barrier);
    announce(warp, op, lane, *barrier, kComplete(op) ? -bytes : bytes);
    settle_phase(*warp.run, *barrier);
  }
  ++warp.run->events;
}

void acquire(Warp& warp, const MBarrier& barrier, u32 lanes) {
  if (warp.run->ordered()) warp.acquire_at_barrier(barrier.done, lanes);
}

// A wait that fails yields the turn.
template <bool kParity>
void mbarrier_test(Warp& warp, const Op& op, u32 mask) {
  u32 done = 0;
  const MBarrier* released = nullptr;
  u32 released_lanes = 0;
  u64 incomplete = 0;
  MBarrier* barrier = nullptr;
  u32 known = 0;  // its address, where nothing is to be reported of it
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 address = barrier_address(warp, op, lane);
    if (!barrier || address != known || warp.run->options.races) barrier = mbarrier_at(warp, op, lane, address, false);
    known = address;
    if (!barrier) {
      done |= 1u << lane;
      continue;
    }
    const bool over = kParity ? (barrier->phase & 1) != (warp.lanes<u32>(kPhaseParity(op))[lane] & 1)
                              : barrier->phase != warp.lanes<u64>(kPhaseState(op))[lane] >> kCountBits;
    if (!over) {
      incomplete = address;
      continue;
    }
    done |= 1u << lane;
    if (released && released != barrier) acquire(warp, *released, std::exchange(released_lanes, 0));
    released = barrier;
    released_lanes |= 1u << lane;
  }
  if (released) acquire(warp, *released, released_lanes);
  u32& result = warp.mask(kDone(op));
  result = (result & ~mask) | done;
  warp.tested_lanes &= ~mask;
  if (done == mask) return;
  warp.tested_lanes |= mask & ~done;
  warp.tested_mbarrier = incomplete;
  warp.yielded = !warp.run->hurried();
  note_poll(warp, op, mixed(mask, done));
}

// The arrivals that were outstanding in a state.
void mbarrier_pending(Warp& warp, const Op& op, u32 mask) {
  const u64* state = warp.lanes<u64>(kGivenState(op));
  u32* d = warp.lanes<u32>(kOutstanding(op));
  for_lanes(mask, [&](int lane) { d[lane] = static_cast<u32>(state[lane]) & ((1u << kCountBits) - 1); });
}

}  // namespace

bool initialisation_ordered(Warp& warp, const MBarrier& barrier) {
  return barrier.initialised.component == warp.component || warp.view.events.covers(barrier.initialised) ||
         warp.view.barriers.at(barrier.component);
}

MBarrier* mbarrier_at(Warp& warp, const Op& op, int lane, u32 address, bool async) {
  Cta* cta = cta_of(warp, address);
  const u32 lanes = 1u << lane;
  if (!cta) {
    report(warp, op, lanes, detector::kBarrierMisuse, address,
           "an mbarrier of CTA rank " + std::to_string(address >> kRankShift) + ", which is outside the cluster");
    return nullptr;
  }
  MBarrier* barrier = cta->mbarrier(address & kOffsetMask);
  if (!barrier) {
    report(warp, op, lanes, detector::kBarrierMisuse, address, "no initialised mbarrier lies at this address");
    return nullptr;
  }
  if (cta != warp.cta && !cta->live_warps) {
    report(warp, op, lanes, detector::kClusterExit, address,
           "an mbarrier of CTA rank " + std::to_string(cta->rank) + ", which has ended");
    return nullptr;
  }
  if (!warp.run->options.races) return barrier;
  if (!initialisation_ordered(warp, *barrier)) {
    report(warp, op, lanes, detector::kBarrierMisuse, address,
           "the mbarrier's initialisation is not ordered before its use here", barrier->instruction);
  } else if (async && !warp.view.barriers.at(barrier->component)) {
    report(
        warp, op, lanes, detector::kMissingProxyFence, address,
        "the mbarrier is signalled by a bulk copy, and no fence.mbarrier_init or fence.proxy.async followed its initialisation",
        barrier->instruction);
  }
  return barrier;
}

void settle_phase(Run& run, MBarrier& barrier) {
  if (barrier.pending || barrier.transactions) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.announced = 0;
  if (run.ordered()) {
    barrier.open.events.raise(barrier.component, static_cast<u32>(barrier.phase));
    for (const auto& [warp, of, number] : barrier.copied) barrier.open.events.raise(of, settled_copies(*warp, of, number));
    barrier.done.join(barrier.open);
  }
  barrier.copied.clear();
  ++run.events;
}

void register_mbarrier(Registry& to) {
  to.add("mbarrier.init", mbarrier_init, {kMbarrier, kGenericMbarrier, kExpected});
  to.add("mbarrier.inval", mbarrier_inval, {kMbarrier, kGenericMbarrier});
  to.add("mbarrier.arrive", mbarrier_arrive,
         {kState, kMbarrier, kGenericMbarrier, kArrivals, kAnnounced, kRelaxedArrival, kDrop, kNoComplete});
  to.add("mbarrier.expect", mbarrier_expect, {kMbarrier, kGenericMbarrier, kTransactionBytes, kComplete});
  to.add("mbarrier.pending", mbarrier_pending, {kOutstanding, kGivenState});
  to.add("mbarrier.test.parity", mbarrier_test<true>, {kDone, kMbarrier, kGenericMbarrier, kPhaseParity});
  to.add("mbarrier.test.state", mbarrier_test<false>, {kDone, kMbarrier, kGenericMbarrier, kPhaseState});
}

}  // namespace emulator
