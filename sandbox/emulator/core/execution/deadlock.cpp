// The report of a run in which no warp can make progress.
#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr std::size_t kMaxNamed = 12;  // warps that a finding names

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
        const int lane = first_lane(warp.runnable() ? warp.runnable() : warp.live);
        const u32 pc = warp.converged ? warp.pc : warp.lane_pc[lane];
        // The program counter of lanes at a barrier is past it, and a failed try_wait is followed by its loop.
        const u32 at = program.ops[pc ? pc - (warp.blocked || !warp.waiting) : 0].instruction;
        finding.waiting.push_back({{cta.id[0], cta.id[1], cta.id[2]}, warp.index, at});
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
