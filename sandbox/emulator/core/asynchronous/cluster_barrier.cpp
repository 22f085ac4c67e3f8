// barrier.cluster: the barrier of all threads of a cluster, and the exit of lanes that barriers expect.
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

namespace {

// A relaxed arrival releases only the initialisation of mbarriers and what a fence came after. Reads before it have returned.
constexpr Operand kRelaxedArrival = number("relaxed", Field::kP);

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

void cluster_arrive(Warp& warp, const Op& op, u32 mask) {
  if (op.flags & kCollective) require_whole_warp(warp, op, mask);
  Cluster& cluster = *warp.cta->cluster;
  if (warp.cluster_arrived & mask) {
    report(warp, op, mask, detector::kBarrierMisuse, 0, "arrives at the cluster's barrier again without waiting for it");
    return;
  }
  warp.cluster_arrived |= mask;
  warp.cluster_phase = cluster.barrier_phase;
  cluster.barrier_arrived += std::popcount(mask);
  if (kRelaxedArrival(op)) {
    cluster.barrier_open.barriers.join(warp.now().barriers);
    cluster.barrier_open.executed.join(warp.view.events);
    cluster.barrier_open.executed.join(warp.view.executed);
    cluster.barrier_open.events.join(warp.view.fenced[kClusterScope]);
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
    report(warp, op, mask, detector::kBarrierMisuse, 0, "waits at the cluster's barrier without having arrived");
    return;
  }
  if (cluster.barrier_phase == warp.cluster_phase) {
    warp.waiting = true;
    return;
  }
  warp.cluster_arrived &= ~mask;
  warp.acquire_at_barrier(cluster.barrier_done, mask);
}

}  // namespace

void leave_barriers(Warp& warp, u32 lanes) {
  Cluster& cluster = *warp.cta->cluster;
  if (cluster.barrier_phase == warp.cluster_phase) cluster.barrier_arrived -= std::popcount(warp.cluster_arrived & lanes);
  warp.cluster_arrived &= ~lanes;
  open_named_barriers(*warp.cta);
  open_if_complete(cluster);
}

void register_cluster_barrier(Registry& to) {
  to.add("barrier.cluster.arrive", cluster_arrive, {kRelaxedArrival});
  to.add("barrier.cluster.wait", cluster_wait, {});
}

}  // namespace emulator
