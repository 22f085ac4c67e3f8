// A warp: its registers and lanes, what happens before its present, and its asynchronous work.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "machine/asynchronous_work.hpp"
#include "order/clock.hpp"
#include "taint/taint.hpp"

namespace emulator {

struct Cta;
class Run;

// A read that a warp repeats while no memory changes: a loop in which it waits for another agent (progress.cpp).
struct Poll {
  const Op* op = nullptr;
  u64 seen = 0;     // addresses and values
  u64 changes = 0;  // of the run at that time
  u64 state = 0;    // registers and local memory when it last yielded, 0: never
};
struct Polls {
  static constexpr u32 kKept = 32;  // of a loop that waits for as many words
  Poll kept[kKept];
  u32 oldest = 0;
  bool spins = false;  // yielded its last turn in such a loop
};

struct Warp {
  Run* run = nullptr;
  Cta* cta = nullptr;
  u8* registers = nullptr;
  u32 index = 0;      // in the CTA
  u32 component = 0;  // in the cluster's clocks
  u32 live = 0;       // lanes that have not exited
  u32 blocked = 0;    // lanes that wait at a barrier
  bool converged = true;
  u32 pc = 0;  // of all lanes while converged
  u32 lane_pc[kLanes] = {};
  u32 moment = 1;        // operations executed, plus one: the value of the warp's own component
  bool waiting = false;  // set by a kWaiting handler that cannot complete: it is executed again later
  bool yielded = false;  // set by a handler after which other warps have a turn (a failed try_wait)
  u32 vain = 0;          // turns without progress; diverged lanes take turns by it
  View view;             // what happens before the present of any lane
  u32 ordered[kAgentsPerWarp] = {
      0, 0, ~0u, 0};  // by OwnAgent: the last event that is ordered before all lanes; products belong to the warp
  u32 ahead = 0;      // lanes whose view exceeds `common`; 0: all lanes have the same view
  Clock common;       // events of other warps that happen before the present of all lanes

  std::vector<LaneCopy> copies;  // by cp.async, in their order
  std::size_t copies_begin = 0;  // those before it are complete
  std::vector<CopyGroup> copy_groups;
  u32 copied[kLanes] = {};                              // by lane: up to this number it has waited for its copies
  std::vector<CopyStream> copy_streams;                 // the first has the warp's component; empty before the first copy
  u32 copy_number = 0;                                  // of the last commit by any lanes
  std::vector<std::shared_ptr<Pending>> copy_arrivals;  // copies that arrive at an mbarrier when they complete

  std::vector<Product> open_products;
  std::deque<std::vector<Product>> product_groups;
  u32 product_number = 0;                               // of the last committed group
  std::vector<u8> register_dirty;                       // by slot / 32: touched since the last wgmma.fence
  std::vector<u16> products_writing, products_reading;  // by slot / 32: unfinished wgmmas that do
  std::vector<u8> sums_written;                         // by slot / 32: known to be written by all lanes
  bool product_fenced = false;

  std::vector<BulkStore> open_stores;
  std::deque<StoreGroup> store_groups;
  u32 store_number = 0;

  u64 tested_mbarrier = 0;  // the last one that a wait found incomplete
  u32 tested_lanes = 0;     // those that found it so and have not passed it since
  u32 cluster_arrived = 0;  // lanes that have arrived at barrier.cluster and not waited yet
  u64 cluster_phase = 0;    // in which they arrived
  std::vector<u8> local;    // lane after lane
  std::vector<u8> local_taint;
  std::vector<CopyTaint> copy_taints;  // of copies by cp.async
  u32 issued = 0;                      // see count_issued
  u64 local_changes = 0;               // stores that changed local memory
  Polls polls;

  template <typename T>
  T* lanes(u32 slot) {
    return reinterpret_cast<T*>(__builtin_assume_aligned(registers + slot, 32));
  }
  u32& mask(u32 slot) { return *reinterpret_cast<u32*>(registers + slot); }
  u32 runnable() const { return live & ~blocked; }
  u32 products() const { return component - index % 4 * kAgentsPerWarp + kOwnProducts; }  // of the warpgroup
  u32 stores() const { return component + kOwnStores; }
  // What a release at this moment publishes: the view with the warp's own operations.
  const View& now() {
    view.events.set(component, moment);
    return view;
  }
  // Lanes acquire what a barrier has released. Events of this warp that were released there are now ordered before all lanes.
  void acquire_at_barrier(const View& released, u32 lanes) {
    for (u32 agent : {kOwnWarp, kOwnStores}) ordered[agent] = std::max(ordered[agent], released.events.at(component + agent));
    for (CopyStream& stream : copy_streams) stream.ordered = std::max(stream.ordered, released.events.at(stream.component));
    const bool all = (lanes & live) == live;
    if (all && ahead) common.join(released.events);
    if (!all && !ahead) common = view.events;
    if (!all) ahead |= lanes;
    if ((ahead & live) == live) ahead = 0;
    view.join(released);
  }
  // All lanes acquire events that no barrier released.
  void acquire(const Clock& events) {
    view.events.join(events);
    if (ahead) common.join(events);
  }
  void acquire(u32 agent, u32 value) {
    view.events.raise(agent, value);
    if (ahead) common.raise(agent, value);
  }
  // Lanes reconverge: what happens before the present of one now happens before the present of all.
  void reconverge(u32 lanes) {
    const Clock& events = now().events;
    for (u32 agent : {kOwnWarp, kOwnStores}) ordered[agent] = events.at(component + agent);
    for (CopyStream& stream : copy_streams) stream.ordered = events.at(stream.component);
    if (ahead & lanes) ahead |= lanes;
    if ((ahead & live) == live) ahead = 0;
  }
};

}  // namespace emulator
