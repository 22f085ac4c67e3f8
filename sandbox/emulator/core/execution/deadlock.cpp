// The report of a run in which no warp can make progress.
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr std::size_t kMaxNamed = 64;  // warps that a finding names

AwaitedBarrier state_of(const MBarrier& barrier, u64 address, const Cta& cta) {
  AwaitedBarrier at;
  for (const auto& [offset, other] : cta.mbarriers) {
    if (barrier.arrived_at == kNoInstruction && other.instruction == barrier.instruction && other.arrived_at != kNoInstruction)
      at.alike = other.arrived_at;
  }
  at.kind = BarrierKind::kMBarrier;
  at.address = address;
  at.phase = barrier.phase;
  at.expected = barrier.expected;
  at.missing = barrier.pending;
  at.missing_bytes = barrier.transactions;
  at.announced = barrier.announced;
  at.initialised = barrier.instruction;
  at.arrived = barrier.arrived_at;
  at.announcing = barrier.announced_at;
  at.delivering = barrier.delivered_at;
  return at;
}

AwaitedBarrier state_of(const Cta& cta, u32 number) {
  const NamedBarrier& barrier = cta.barriers[number];
  AwaitedBarrier at;
  at.kind = BarrierKind::kNamed;
  at.address = number;
  at.expected = barrier.expected ? barrier.expected : live_lanes(cta);
  at.missing = at.expected - std::min(barrier.arrived, at.expected);
  return at;
}

AwaitedBarrier state_of(const Cluster& cluster) {
  AwaitedBarrier at;
  at.kind = BarrierKind::kCluster;
  at.phase = cluster.barrier_phase;
  for (const Cta& cta : cluster.ctas) at.expected += live_lanes(cta);
  at.missing = at.expected - std::min(cluster.barrier_arrived, at.expected);
  return at;
}

// The barrier that a warp waits at; none where it waits in a loop of its own, or for its asynchronous work.
AwaitedBarrier awaited_by(const Warp& warp, u32 lanes) {
  Cta& cta = *warp.cta;
  if (lanes & warp.blocked) {
    for (u32 number = 0; number < std::size(cta.barriers); ++number) {
      for (const NamedBarrier::Waiting& waiting : cta.barriers[number].waiting)
        if (waiting.warp == &warp) return state_of(cta, number);
    }
  }
  if (lanes & warp.tested_lanes) {
    const u64 rank = warp.tested_mbarrier >> kRankShift;
    if (rank >= cta.cluster->ctas.size()) return {};
    const Cta& of = cta.cluster->ctas[rank];
    const auto at = of.mbarriers.find(warp.tested_mbarrier & kOffsetMask);
    if (at != of.mbarriers.end()) return state_of(at->second, warp.tested_mbarrier, of);
  }
  if (warp.waiting && lanes & warp.cluster_arrived && cta.cluster->barrier_phase == warp.cluster_phase)
    return state_of(*cta.cluster);
  return {};
}

}  // namespace

// mbarriers that only lack bytes, while no bytes are in flight.
void Run::report_missing_transactions() {
  for (const auto& cluster : resident_) {
    for (const Cta& cta : cluster->ctas) {
      for (const auto& [offset, barrier] : cta.mbarriers) {
        if (barrier.pending || !barrier.transactions) continue;
        Finding* finding = report.open(detector::kTransactionMismatch, barrier.instruction, kNoInstruction, false);
        if (!finding) continue;
        const bool short_of = barrier.transactions > 0;
        finding->message = "all arrivals at the mbarrier are complete, and " + std::to_string(std::abs(barrier.transactions)) +
                           (short_of ? " expected bytes have not arrived" : " bytes more than expected have arrived");
        std::copy(std::begin(cta.id), std::end(cta.id), finding->cta);
        finding->address = static_cast<u64>(cta.rank) << kRankShift | offset;
      }
    }
  }
}

void Run::add_waiting(Finding& finding) const {
  for (const auto& cluster : resident_) {
    for (Cta& cta : cluster->ctas) {
      for (Warp& warp : cta.warps) {
        if (!warp.live) continue;
        if (finding.waiting.size() == kMaxNamed) {
          ++finding.more_waiting;
          continue;
        }
        const u32 lanes = warp.runnable() ? warp.runnable() : warp.live;
        const int lane = first_lane(lanes);
        const u32 pc = warp.converged ? warp.pc : warp.lane_pc[lane];
        // The program counter of lanes at a barrier is past it, and a failed try_wait is followed by its loop.
        const u32 at = program.ops[pc ? pc - (warp.blocked || !warp.waiting) : 0].instruction;
        finding.waiting.push_back({{cta.id[0], cta.id[1], cta.id[2]}, warp.index, at, awaited_by(warp, 1u << lane)});
      }
    }
  }
  if (finding.waiting.empty()) return;
  finding.instruction = finding.waiting.front().instruction;
  std::copy(std::begin(finding.waiting.front().cta), std::end(finding.waiting.front().cta), finding.cta);
}

void Run::report_deadlock() {
  report_missing_transactions();
  stop_in_the_middle(detector::kDeadlock, "no warp can make progress");
}

}  // namespace emulator
