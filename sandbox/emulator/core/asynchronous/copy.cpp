// cp.async: copies of 4, 8 or 16 bytes per lane from global to shared memory, in groups that are waited for.
//
// The source is read at issue. The destination is written at issue under the eager interleaving, at the wait under the latest,
// and at either time under random ones. To the race detector, an agent of the lane writes it from issue to wait.
//
// Commits and waits are those of a thread. Lanes that execute them together share an agent, so that most warps have one; lanes
// that execute one of them apart from the others get an agent of their own from then on.
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kTarget = address("target", Field::kA, Field::kQ, Field::kS);
constexpr Operand kSource = address("source", Field::kB, Field::kR, Field::kImm);
constexpr Operand kBytes = number("bytes", Field::kP);
constexpr Operand kRead = optional(slot("read_bytes", Field::kC, 4));           // the rest is zero; all where there is none
constexpr Operand kIgnore = optional(slot("ignore_source", Field::kE, kMask));  // nothing is read where it holds
constexpr Operand kPendingGroups = number("pending", Field::kImm);              // groups that may stay incomplete
constexpr Operand kAll = optional(number("all", Field::kP));  // wait_all, copies that were not committed included
constexpr Operand kMbarrier = address("mbarrier", Field::kA, Field::kP, Field::kImm);
constexpr Operand kGenericMbarrier = number("generic", Field::kQ);
constexpr Operand kCounted = number("counted", Field::kR);  // the arrival was counted when the mbarrier was initialised

void apply(Warp& warp, LaneCopy& copy) {
  if (std::exchange(copy.written, true)) return;
  std::memcpy(cta_of(warp, copy.address)->smem.data() + (copy.address & kOffsetMask), copy.data, copy.bytes);
  if (warp.run->options.taint) [[unlikely]]
    put_taint(warp, copy);
}

void complete(Warp& warp, LaneCopy& copy) {
  apply(warp, copy);
  copy.complete = true;
}

// Forgets the first copies that are complete.
void trim(Warp& warp) {
  constexpr std::size_t kKept = 1 << 10;
  std::size_t& begin = warp.copies_begin;
  if (warp.copies.empty()) return;
  while (begin < warp.copies.size() && warp.copies[begin].complete) ++begin;
  if (begin < warp.copies.size() && begin < kKept) return;
  warp.copies.erase(warp.copies.begin(), warp.copies.begin() + static_cast<std::ptrdiff_t>(begin));
  begin = 0;
}

// Visits the copies in flight up to a number. Numbers rise in the order of the copies.
template <typename Visit>
void each_up_to(Warp& warp, u32 number, Visit visit) {
  for (std::size_t i = warp.copies_begin; i < warp.copies.size() && warp.copies[i].event.value <= number; ++i) {
    if (!warp.copies[i].complete) visit(warp.copies[i]);
  }
}

// The components in which a stream's lanes have copies.
template <typename Visit>
void each_component(const Warp& warp, u32 stream, Visit visit) {
  visit(warp.copy_streams[stream].component);
  while (stream) {
    stream = warp.copy_streams[stream].parent;
    visit(warp.copy_streams[stream].component);
  }
}

u32 stream_of(const Warp& warp, int lane) {
  if (warp.copy_streams.size() == 1) return 0;
  u32 stream = 0;
  while (!(warp.copy_streams[stream].lanes >> lane & 1)) ++stream;
  return stream;
}

void begin(Warp& warp) {
  if (warp.copy_streams.empty()) warp.copy_streams.push_back({warp.component + kOwnCopies, kAllLanes});
}

// Lanes that commit or wait apart from others of their stream leave it.
void part(Warp& warp, u32 mask) {
  begin(warp);
  if (mask == warp.live) return;
  std::vector<Agent>& agents = warp.cta->cluster->agents;
  for (std::size_t i = 0, count = warp.copy_streams.size(); i < count; ++i) {
    const u32 lanes = warp.copy_streams[i].lanes & warp.live;
    if (!(lanes & mask) || !(lanes & ~mask)) continue;
    if (agents.size() >= kMaxAgents) {
      warp.run->stop(detector::kUnsupported, "a cluster in which thousands of lanes copy apart from their warps");
      return;
    }
    warp.copy_streams[i].lanes &= ~mask;
    warp.copy_streams.push_back({static_cast<u32>(agents.size()), lanes & mask, static_cast<u32>(i)});
    agents.push_back({AgentKind::kCopies, warp.cta->rank, warp.index});
  }
}

bool at_once(Run& run) {
  return run.options.interleaving == Interleaving::kEager ||
         (run.options.interleaving == Interleaving::kRandom && run.random() % 2);
}

// An arrival at an mbarrier when the copies of a lane up to a number are complete, which nobody waits for.
struct CopyArrival : Pending {
  CopyArrival(Warp& warp, MBarrier& barrier, int lane)
      : Pending(warp.cta->cluster), warp(warp), barrier(barrier), lane(lane), number(warp.copy_number + 1), view(warp.now()) {}

  void complete() override {
    each_up_to(warp, number, [&](LaneCopy& copy) {
      if (copy.lane == lane) emulator::complete(warp, copy);
    });
    trim(warp);
    each_component(warp, stream_of(warp, lane), [&](u32 of) { barrier.copied.push_back({&warp, of, number}); });
    barrier.open.join(view);
    barrier.pending -= std::min(1u, barrier.pending);
    settle_phase(*warp.run, barrier);
  }

  Warp& warp;
  MBarrier& barrier;
  int lane;
  u32 number;
  View view;
};

void complete_arrivals(Warp& warp) {
  for (const auto& arrival : warp.copy_arrivals) {
    if (arrival->done) continue;
    arrival->done = true;
    arrival->complete();
  }
  warp.copy_arrivals.clear();
}

void copy(Warp& warp, const Op& op, u32 mask) {
  Run& run = *warp.run;
  const u32 ignored = kIgnore(op) ? warp.mask(kIgnore(op)) : 0;
  begin(warp);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    LaneCopy made;
    made.address =
        static_cast<u32>(lane_address(warp, kTarget(op), kTarget.bytes_of(op), lane)) + static_cast<u32>(kTarget.offset_of(op));
    made.bytes = static_cast<u8>(kBytes(op));
    made.lane = static_cast<u8>(lane);
    if (kRead(op) || kIgnore(op)) std::memset(made.data, 0, sizeof made.data);
    const u64 source = lane_address(warp, kSource(op), kSource.bytes_of(op), lane) + static_cast<u64>(op.imm);
    u32 bytes = kRead(op) ? warp.lanes<u32>(kRead(op))[lane] : kBytes(op);
    if (ignored >> lane & 1) bytes = 0;
    if (bytes > kBytes(op)) {
      report(warp, op, 1u << lane, detector::kMisaligned, source,
             "cp.async of " + std::to_string(kBytes(op)) + " bytes is to read " + std::to_string(bytes));
      bytes = kBytes(op);
    }
    if (bytes && source % kBytes(op)) {
      report(warp, op, 1u << lane, detector::kMisaligned, source,
             "cp.async of " + std::to_string(kBytes(op)) + " bytes from an address that is not a multiple of them");
      continue;
    }
    if (bytes) {
      bool poison = false;
      const u8* from = global_at(warp, op, lane, source, bytes, Access::kRead, &poison);
      if (from && !poison) {
        std::memcpy(made.data, from, bytes);
      } else {
        std::memset(made.data, run.options.poison, bytes);
      }
    }
    if (run.options.taint) [[unlikely]]
      made.taint = keep_taint(warp, op, lane, source, bytes);
    Touch touch;
    touch.epoch = made.event = {warp.copy_streams[stream_of(warp, lane)].component, warp.copy_number + 1};
    if (!shared_at(warp, op, lane, made.address, kBytes(op), Access::kWrite, nullptr, touch)) continue;
    if (at_once(run)) apply(warp, made);
    warp.copies.push_back(made);
    count_issued(warp);
  }
}

void commit(Warp& warp, const Op&, u32 mask) {
  part(warp, mask);
  warp.copy_groups.push_back({mask, ++warp.copy_number});
  count_issued(warp);
}

void wait(Warp& warp, const Op& op, u32 mask) {
  complete_arrivals(warp);
  if (kAll(op)) commit(warp, op, mask);
  part(warp, mask);
  u32 kept[kLanes] = {}, done[kLanes] = {}, most = 0;
  u32 still = op.imm > 0 ? mask : 0;  // lanes that may keep the next group incomplete
  for (std::size_t i = warp.copy_groups.size(); i-- > 0;) {
    CopyGroup& group = warp.copy_groups[i];
    const u32 over = group.lanes & mask & ~still;
    for_lanes(group.lanes & still, [&](int lane) {
      if (++kept[lane] >= static_cast<u64>(op.imm)) still &= ~(1u << lane);
    });
    group.lanes &= ~over;
    for_lanes(over, [&](int lane) { done[lane] = std::max(done[lane], group.number); });
    if (over) most = std::max(most, group.number);
  }
  std::erase_if(warp.copy_groups, [&](const CopyGroup& group) { return !(group.lanes & warp.live); });
  for_lanes(mask, [&](int lane) { warp.copied[lane] = std::max(warp.copied[lane], done[lane]); });
  each_up_to(warp, most, [&](LaneCopy& copy) {
    if (copy.event.value <= done[copy.lane]) complete(warp, copy);
  });
  trim(warp);
  for (u32 i = 0; i < warp.copy_streams.size(); ++i) {
    if (!(warp.copy_streams[i].lanes & mask)) continue;
    each_component(warp, i, [&](u32 of) { warp.acquire(of, settled_copies(warp, of, warp.copy_number)); });
  }
}

void arrive(Warp& warp, const Op& op, u32 mask) {
  part(warp, mask);
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u64 address = lane_address(warp, kMbarrier(op), kMbarrier.bytes_of(op), lane) + static_cast<u64>(op.imm);
    MBarrier* barrier =
        mbarrier_at(warp, op, lane, static_cast<u32>(kGenericMbarrier(op) ? address - kSharedWindow : address), false);
    if (!barrier) continue;
    if (!kCounted(op)) ++barrier->pending;
    auto arrival = std::make_shared<CopyArrival>(warp, *barrier, lane);
    warp.copy_arrivals.push_back(arrival);
    count_issued(warp);
    warp.run->enqueue(arrival);
  }
  ++warp.copy_number;  // later copies are not covered
  ++warp.run->events;
}

}  // namespace

u32 settled_copies(const Warp& warp, u32 component, u32 number) {
  for (std::size_t i = warp.copies_begin; i < warp.copies.size() && warp.copies[i].event.value <= number; ++i) {
    const LaneCopy& copy = warp.copies[i];
    if (!copy.complete && copy.event.component == component && warp.live >> copy.lane & 1) return copy.event.value - 1;
  }
  return number;
}

void finish_copies(Warp& warp) {
  complete_arrivals(warp);
  for (LaneCopy& copy : warp.copies) apply(warp, copy);
}

std::size_t copies_in_flight(const Warp& warp) {
  return warp.copies.size() - warp.copies_begin + warp.copy_groups.size() + warp.copy_arrivals.size();
}

void register_copy(Registry& to) {
  to.add("cp.async", copy, {kTarget, kSource, kBytes, kRead, kIgnore},
         [](const OpRecord& op) { return kBytes(op) == 4 || kBytes(op) == 8 || kBytes(op) == 16; });
  to.add("cp.async.commit", commit, {});
  to.add("cp.async.wait", wait, {kPendingGroups, kAll});
  to.add("cp.async.arrive", arrive, {kMbarrier, kGenericMbarrier, kCounted});
}

}  // namespace emulator
