// Barriers of CTAs, clusters and transactions, and the fences between them.
//
// bar:     a number of the barrier (4 bytes), b participants (0: all), c predicate and d result of bar.red
// mbarrier: a address (p: its bytes), imm its offset, q: the address is generic; the rest at each handler
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

namespace {

// ---- bar --------------------------------------------------------------------------------------------------------------------
enum Reduction : u32 { kNoReduction, kAnd, kOr, kCount };

u32 live_lanes(const Cta& cta) {
  u32 lanes = 0;
  for (const Warp& warp : cta.warps) lanes += std::popcount(warp.live);
  return lanes;
}

void write_reduction(const NamedBarrier& barrier, const NamedBarrier::Waiting& waiting) {
  Warp& warp = *waiting.warp;
  const Op& op = *waiting.op;
  switch (op.p) {
    case kAnd:
    case kOr: {
      const bool holds = op.p == kAnd ? barrier.holding == barrier.arrived : barrier.holding > 0;
      u32& result = warp.mask(op.d);
      result = holds ? result | waiting.lanes : result & ~waiting.lanes;
      break;
    }
    case kCount:
      for_lanes(waiting.lanes, [&](int lane) { warp.lanes<u32>(op.d)[lane] = barrier.holding; });
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
    waiting.warp->learn(barrier.gathered, waiting.lanes);
    waiting.warp->blocked &= ~waiting.lanes;
  }
  barrier = NamedBarrier();
  ++cta.cluster->run->events;
  ++cta.cluster->run->meetings;
}

// Lanes arrive; null where they may not.
NamedBarrier* arrive(Warp& warp, const Op& op, u32 mask) {
  if (op.flags & kCollective) require_whole_warp(warp, op, mask);
  const int lane = first_lane(mask);
  const u32 number = warp.lanes<u32>(op.a)[lane];
  const u32 expected = op.b ? warp.lanes<u32>(op.b)[lane] : 0;
  if (number > 15) {
    report(warp, op, mask, "barrier-misuse", 0, "barrier " + std::to_string(number) + "; there are 0 to 15");
    return nullptr;
  }
  if (op.b && (expected == 0 || expected % kLanes)) {
    report(
        warp, op, mask, "barrier-misuse", 0,
        "barrier " + std::to_string(number) + " for " + std::to_string(expected) + " threads, not a multiple of the warp's 32");
    return nullptr;
  }
  NamedBarrier& barrier = warp.cta->barriers[number];
  if (barrier.open && barrier.expected != expected) {
    report(warp, op, mask, "barrier-misuse", 0,
           "barrier " + std::to_string(number) + " for " + std::to_string(expected) + " threads, while others wait there for " +
               std::to_string(barrier.expected));
  }
  barrier.open = true;
  barrier.expected = expected;
  barrier.arrived += std::popcount(mask);
  if (op.c) barrier.holding += std::popcount(mask & warp.mask(op.c));
  if (expected && barrier.arrived > expected) {
    report(warp, op, mask, "barrier-misuse", 0,
           std::to_string(barrier.arrived) + " threads arrive at barrier " + std::to_string(number) + ", which is for " +
               std::to_string(expected));
  }
  barrier.gathered.join(warp.now());
  ++warp.run->events;
  ++warp.run->meetings;
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

// ---- barrier.cluster --------------------------------------------------------------------------------------------------------
void open_if_complete(Cluster& cluster) {
  u32 live = 0;
  for (const Cta& cta : cluster.ctas) live += live_lanes(cta);
  if (!cluster.barrier_arrived || cluster.barrier_arrived < live) return;
  cluster.barrier_arrived = 0;
  ++cluster.barrier_phase;
  cluster.barrier_done = std::move(cluster.barrier_open);
  cluster.barrier_open.clear();
  ++cluster.run->events;
}

// p: 1 where nothing is published but that mbarriers exist, and what a fence came after
void cluster_arrive(Warp& warp, const Op& op, u32 mask) {
  if (op.flags & kCollective) require_whole_warp(warp, op, mask);
  Cluster& cluster = *warp.cta->cluster;
  if (warp.cluster_arrived & mask) {
    report(warp, op, mask, "barrier-misuse", 0, "arrives at the cluster's barrier again without waiting for it");
    return;
  }
  warp.cluster_arrived |= mask;
  warp.cluster_phase = cluster.barrier_phase;
  cluster.barrier_arrived += std::popcount(mask);
  if (op.p) {
    cluster.barrier_open.barriers.join(warp.now().barriers);
    cluster.barrier_open.events.join(warp.knows.fenced[kClusterScope]);
  } else {
    cluster.barrier_open.join(warp.now());
  }
  ++warp.run->events;
  open_if_complete(cluster);
}

void cluster_wait(Warp& warp, const Op& op, u32 mask) {
  if (op.flags & kCollective) require_whole_warp(warp, op, mask);
  Cluster& cluster = *warp.cta->cluster;
  if (mask & ~warp.cluster_arrived) {
    report(warp, op, mask, "barrier-misuse", 0, "waits at the cluster's barrier without having arrived");
    return;
  }
  if (cluster.barrier_phase == warp.cluster_phase) {
    warp.waiting = true;
    return;
  }
  warp.cluster_arrived &= ~mask;
  warp.learn(cluster.barrier_done, mask);
}

// ---- mbarrier ---------------------------------------------------------------------------------------------------------------
constexpr u32 kCountBits = 20;  // of arrivals, the largest number there may be

u32 barrier_address(Warp& warp, const Op& op, int lane) {
  const u64 address = lane_address(warp, op.a, op.p, lane) + static_cast<u64>(op.imm);
  return static_cast<u32>(op.q ? address - kSharedWindow : address);
}

bool knows_initialisation(Warp& warp, const MBarrier& barrier) {
  return barrier.initialised.component == warp.component || warp.knows.events.covers(barrier.initialised) ||
         warp.knows.barriers.at(barrier.component);
}

// b: arrivals (4 bytes)
void mbarrier_init(Warp& warp, const Op& op, u32 mask) {
  Cta& cta = *warp.cta;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 address = barrier_address(warp, op, lane), offset = address & kOffsetMask, count = warp.lanes<u32>(op.b)[lane];
    if (cta_of(warp, address) != &cta || offset < kSharedBase || offset + 8 > cta.smem_end || offset % 8) {
      report(warp, op, 1u << lane, "shared-out-of-bounds", address, "an mbarrier outside shared memory, or not on 8 bytes");
      continue;
    }
    if (!count || count >= 1u << kCountBits) {
      report(warp, op, 1u << lane, "barrier-misuse", address, "an mbarrier for " + std::to_string(count) + " arrivals");
      continue;
    }
    if (cta.cluster->agents.size() >= kMostAgents) {
      warp.run->stop("unsupported", "a cluster that initialises thousands of mbarriers");
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
    if (warp.run->options.races) cta.shadow.mark_barrier(address & kOffsetMask, false);
  }
}

void announce(Warp& warp, const Op& op, int lane, MBarrier& barrier, i64 bytes) {
  barrier.transactions += bytes;
  if (barrier.transactions >= 1 << 20 || barrier.transactions <= -(1 << 20)) {
    report(warp, op, 1u << lane, "transaction-mismatch", 0, "more than 2^20 - 1 bytes are expected at one mbarrier");
    barrier.transactions = 0;
  }
}

// The opaque state: the phase, and the arrivals that it still waited for.
u64 state_of(const MBarrier& barrier) { return barrier.phase << kCountBits | barrier.pending; }

// b: arrivals (0: one), c: bytes announced (0: none), d: state before (8 bytes a lane, 0: not wanted), r: nothing is published,
// s: bit 0 where the arrivals drop the expected count too, bit 1 where they may not complete the phase
void mbarrier_arrive(Warp& warp, const Op& op, u32 mask) {
  Run& run = *warp.run;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, barrier_address(warp, op, lane), false);
    if (!barrier) continue;
    const u32 count = op.b ? warp.lanes<u32>(op.b)[lane] : 1;
    if (op.d) warp.lanes<u64>(op.d)[lane] = state_of(*barrier);
    if (op.c) announce(warp, op, lane, *barrier, warp.lanes<u32>(op.c)[lane]);
    if (count > barrier->pending || (op.s & 2 && count == barrier->pending)) {
      report(warp, op, 1u << lane, "barrier-misuse", barrier_address(warp, op, lane),
             std::to_string(count) + " arrivals at an mbarrier that expects " + std::to_string(barrier->pending) + " more of " +
                 std::to_string(barrier->expected));
      continue;
    }
    barrier->pending -= count;
    if (op.s & 1) barrier->expected -= std::min(count, barrier->expected);
    if (!op.r) barrier->open.join(warp.now());
    settle_phase(run, *barrier);
  }
  ++run.events;
}

// c: bytes announced (4 bytes); s: 1 where they are delivered instead
void mbarrier_expect(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, barrier_address(warp, op, lane), false);
    if (!barrier) continue;
    const i64 bytes = warp.lanes<u32>(op.c)[lane];
    announce(warp, op, lane, *barrier, op.s ? -bytes : bytes);
    settle_phase(*warp.run, *barrier);
  }
  ++warp.run->events;
}

// d: predicate; b: parity (4 bytes, r: 1) or state (8 bytes). A wait that fails gives the turn away.
void mbarrier_test(Warp& warp, const Op& op, u32 mask) {
  u32 done = 0;
  const MBarrier* told = nullptr;
  u32 told_lanes = 0;
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, barrier_address(warp, op, lane), false);
    if (!barrier) {
      done |= 1u << lane;
      continue;
    }
    const bool over = op.r ? (barrier->phase & 1) != (warp.lanes<u32>(op.b)[lane] & 1)
                           : barrier->phase != warp.lanes<u64>(op.b)[lane] >> kCountBits;
    if (!over) continue;
    done |= 1u << lane;
    if (told && told != barrier) warp.learn(told->done, std::exchange(told_lanes, 0));
    told = barrier;
    told_lanes |= 1u << lane;
  }
  if (told) warp.learn(told->done, told_lanes);
  warp.mask(op.d) = (warp.mask(op.d) & ~mask) | done;
  if (done == mask) return;
  warp.yielded = !warp.run->hurried();
  note_poll(warp, op, mixed(mask, done));
}

// a: state; d: arrivals that were outstanding (4 bytes)
void mbarrier_pending(Warp& warp, const Op& op, u32 mask) {
  const u64* state = warp.lanes<u64>(op.a);
  u32* d = warp.lanes<u32>(op.d);
  for_lanes(mask, [&](int lane) { d[lane] = static_cast<u32>(state[lane]) & ((1u << kCountBits) - 1); });
}

// ---- fences -----------------------------------------------------------------------------------------------------------------
void know_barriers(Warp& warp) {
  for (const Cta& cta : warp.cta->cluster->ctas) {
    for (const auto& [offset, barrier] : cta.mbarriers) {
      if (knows_initialisation(warp, barrier)) warp.knows.barriers.raise(barrier.component, 1);
    }
  }
}

// p: Scope
void fence(Warp& warp, const Op& op, u32) {
  Knowledge& knows = warp.knows;
  for (u32 scope = 0; scope <= op.p; ++scope) {
    if (const auto heard = std::exchange(knows.heard[scope], nullptr)) {
      hear_wait(warp, *heard);
      join_foreign(knows.foreign, heard);
      if (const auto own = heard->find(warp.cta->cluster->index); own != heard->end()) warp.hear(own->second);
    }
  }
  for (u32 scope = 0; scope <= op.p; ++scope) knows.fenced[scope].join(warp.now().events);
}

void fence_proxy_async(Warp& warp, const Op&, u32) {
  warp.knows.proxied.join(warp.now().events);
  know_barriers(warp);
}

void fence_mbarrier_init(Warp& warp, const Op&, u32) { know_barriers(warp); }

void dependency_wait(Warp& warp, const Op&, u32) {
  warp.run->waited = warp.cta->waited = true;
  warp.hear(kDependencyComponent, 1);
}

// The first thread of a CTA to come here lets the next launch start, as far as this CTA goes.
void dependency_trigger(Warp& warp, const Op&, u32) {
  if (!warp.knows.events.at(kDependencyComponent)) warp.cta->triggered = true;
}

void nothing(Warp&, const Op&, u32) {}

bool waits(const OpRecord& op) { return op.kind == kWaiting; }
bool has_scope(const OpRecord& op) { return op.p < kScopes; }

}  // namespace

MBarrier* mbarrier_at(Warp& warp, const Op& op, int lane, u32 address, bool async) {
  Cta* cta = cta_of(warp, address);
  const u32 lanes = 1u << lane;
  if (!cta) {
    report(warp, op, lanes, "barrier-misuse", address,
           "an mbarrier of CTA rank " + std::to_string(address >> kRankShift) + ", which the cluster does not have");
    return nullptr;
  }
  const auto at = cta->mbarriers.find(address & kOffsetMask);
  if (at == cta->mbarriers.end()) {
    report(warp, op, lanes, "barrier-misuse", address, "there is no initialised mbarrier at this address");
    return nullptr;
  }
  MBarrier& barrier = at->second;
  if (cta != warp.cta && !cta->live_warps) {
    report(warp, op, lanes, "cluster-exit", address,
           "an mbarrier of CTA rank " + std::to_string(cta->rank) + ", which has ended");
    return nullptr;
  }
  if (!warp.run->options.races) return &barrier;
  if (!knows_initialisation(warp, barrier)) {
    report(warp, op, lanes, "barrier-misuse", address, "the mbarrier's initialisation is not ordered before its use here",
           barrier.instruction);
  } else if (async && !warp.knows.barriers.at(barrier.component)) {
    report(
        warp, op, lanes, "missing-proxy-fence", address,
        "the mbarrier is signalled by a bulk copy, and no fence.mbarrier_init or fence.proxy.async followed its initialisation",
        barrier.instruction);
  }
  return &barrier;
}

void settle_phase(Run& run, MBarrier& barrier) {
  if (barrier.pending || barrier.transactions) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.open.events.raise(barrier.component, static_cast<u32>(barrier.phase));
  barrier.done.join(barrier.open);
  ++run.events;
}

void leave_barriers(Warp& warp, u32 lanes) {
  Cluster& cluster = *warp.cta->cluster;
  if (cluster.barrier_phase == warp.cluster_phase) cluster.barrier_arrived -= std::popcount(warp.cluster_arrived & lanes);
  warp.cluster_arrived &= ~lanes;
  for (NamedBarrier& barrier : warp.cta->barriers) open_if_complete(*warp.cta, barrier);
  open_if_complete(cluster);
}

void register_barrier(Registry& to) {
  to.add("bar.sync", bar_sync, {.d = 4, .a = 4, .b = 4, .c = kMask}, waits);
  to.add("bar.arrive", bar_arrive, {.a = 4, .b = 4});
  to.add("barrier.cluster.arrive", cluster_arrive, {});
  to.add("barrier.cluster.wait", cluster_wait, {});
  to.add("mbarrier.init", mbarrier_init, {.a = 8, .b = 4});
  to.add("mbarrier.inval", mbarrier_inval, {.a = 8});
  to.add("mbarrier.arrive", mbarrier_arrive, {.d = 8, .a = 8, .b = 4, .c = 4});
  to.add("mbarrier.expect", mbarrier_expect, {.a = 8, .c = 4});
  to.add("mbarrier.pending", mbarrier_pending, {.d = 4, .a = 8});
  to.add("mbarrier.test", mbarrier_test, {.d = kMask, .a = 8, .b = 8});
  to.add("fence", fence, {}, has_scope);
  to.add("fence.proxy.async", fence_proxy_async, {});
  to.add("fence.mbarrier_init", fence_mbarrier_init, {});
  to.add("griddepcontrol.wait", dependency_wait, {});
  to.add("griddepcontrol.launch_dependents", dependency_trigger, {});
  to.add("nothing", nothing, {});
}

}  // namespace emulator
