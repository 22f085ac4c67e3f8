// cp.async: copies of 4, 8 or 16 bytes per lane from global to shared memory, in groups that are waited for.
//
// The source is read at issue. The destination is written at issue under the eager interleaving, at the wait under the latest,
// and at either time under random ones. To the race detector, an agent of the warp writes it from issue to wait.
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

void apply(Warp& warp, const LaneCopy& copy) {
  std::memcpy(cta_of(warp, copy.address)->smem.data() + (copy.address & kOffsetMask), copy.data, copy.bytes);
  if (warp.run->options.taint) [[unlikely]]
    put_taint(warp, copy);
}

void apply(Warp& warp, std::vector<LaneCopy>& copies) {
  for (const LaneCopy& copy : copies) apply(warp, copy);
  copies.clear();
}

bool at_once(Run& run) {
  return run.options.interleaving == Interleaving::kEager ||
         (run.options.interleaving == Interleaving::kRandom && run.random() % 2);
}

// Copies that arrive at an mbarrier when they complete, instead of being waited for.
struct CopyArrival : Pending {
  CopyArrival(Warp& warp, MBarrier& barrier, u32 arrivals, u32 number)
      : Pending(warp.cta->cluster), warp(warp), barrier(barrier), arrivals(arrivals), number(number) {}

  void complete() override {
    apply(warp, copies);
    barrier.open.events.raise(warp.copies(), number);
    barrier.open.join(view);
    barrier.pending -= std::min(arrivals, barrier.pending);
    settle_phase(*warp.run, barrier);
  }

  Warp& warp;
  MBarrier& barrier;
  u32 arrivals, number;
  View view;
  std::vector<LaneCopy> copies;
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
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    LaneCopy made;
    made.address =
        static_cast<u32>(lane_address(warp, kTarget(op), kTarget.bytes_of(op), lane)) + static_cast<u32>(kTarget.offset_of(op));
    made.bytes = kBytes(op);
    made.lane = static_cast<u32>(lane);
    std::memset(made.data, 0, sizeof made.data);
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
    touch.epoch = {warp.copies(), warp.copy_number + 1};
    if (!shared_at(warp, op, lane, made.address, kBytes(op), Access::kWrite, nullptr, touch)) continue;
    if (at_once(run)) {
      apply(warp, made);
    } else {
      warp.open_copies.push_back(made);
      count_issued(warp);
    }
  }
}

void commit(Warp& warp, const Op&, u32 mask) {
  CopyGroup group;
  group.lanes = mask;
  group.number = ++warp.copy_number;
  if (mask == warp.live) {
    group.copies = std::move(warp.open_copies);
    warp.open_copies.clear();
  } else {
    const auto mine = [mask](const LaneCopy& copy) { return mask >> copy.lane & 1; };
    std::copy_if(warp.open_copies.begin(), warp.open_copies.end(), std::back_inserter(group.copies), mine);
    std::erase_if(warp.open_copies, mine);
  }
  warp.copy_groups.push_back(std::move(group));
  count_issued(warp);
}

void wait(Warp& warp, const Op& op, u32 mask) {
  complete_arrivals(warp);
  if (kAll(op)) commit(warp, op, mask);
  u32 kept[kLanes] = {};
  u32 still = mask;  // lanes that may keep the next group incomplete
  if (op.imm <= 0) still = 0;
  for (std::size_t i = warp.copy_groups.size(); i-- > 0;) {
    CopyGroup& group = warp.copy_groups[i];
    const u32 done = group.lanes & mask & ~still;
    for (u32 left = group.lanes & still; left; left &= left - 1) {
      const int lane = std::countr_zero(left);
      if (++kept[lane] >= static_cast<u64>(op.imm)) still &= ~(1u << lane);
    }
    if (!done) continue;
    group.lanes &= ~done;
    const auto mine = [done](const LaneCopy& copy) { return done >> copy.lane & 1; };
    for (const LaneCopy& copy : group.copies) {
      if (mine(copy)) apply(warp, copy);
    }
    std::erase_if(group.copies, mine);
    // The warp has one clock for all lanes, so a group is complete when every lane has waited for it.
    if (!(group.lanes & warp.live)) warp.acquire(warp.copies(), group.number);
  }
  std::erase_if(warp.copy_groups, [&](const CopyGroup& group) { return !(group.lanes & warp.live); });
}

void arrive(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u64 address = lane_address(warp, kMbarrier(op), kMbarrier.bytes_of(op), lane) + static_cast<u64>(op.imm);
    MBarrier* barrier =
        mbarrier_at(warp, op, lane, static_cast<u32>(kGenericMbarrier(op) ? address - kSharedWindow : address), false);
    if (!barrier) continue;
    if (!kCounted(op)) ++barrier->pending;
    auto arrival = std::make_shared<CopyArrival>(warp, *barrier, 1, warp.copy_number + 1);
    arrival->view = warp.now();
    const auto mine = [lane](const LaneCopy& copy) { return copy.lane == static_cast<u32>(lane); };
    for (CopyGroup& group : warp.copy_groups) {
      std::copy_if(group.copies.begin(), group.copies.end(), std::back_inserter(arrival->copies), mine);
      std::erase_if(group.copies, mine);
    }
    std::copy_if(warp.open_copies.begin(), warp.open_copies.end(), std::back_inserter(arrival->copies), mine);
    std::erase_if(warp.open_copies, mine);
    warp.copy_arrivals.push_back(arrival);
    count_issued(warp);
    warp.run->enqueue(arrival);
  }
  ++warp.copy_number;  // later copies are not covered
  ++warp.run->events;
}

}  // namespace

void finish_copies(Warp& warp) {
  complete_arrivals(warp);
  for (CopyGroup& group : warp.copy_groups) apply(warp, group.copies);
  warp.copy_groups.clear();
  apply(warp, warp.open_copies);
}

void register_copy(Registry& to) {
  to.add("cp.async", copy, {kTarget, kSource, kBytes, kRead, kIgnore},
         [](const OpRecord& op) { return kBytes(op) == 4 || kBytes(op) == 8 || kBytes(op) == 16; });
  to.add("cp.async.commit", commit, {});
  to.add("cp.async.wait", wait, {kPendingGroups, kAll});
  to.add("cp.async.arrive", arrive, {kMbarrier, kGenericMbarrier, kCounted});
}

}  // namespace emulator
