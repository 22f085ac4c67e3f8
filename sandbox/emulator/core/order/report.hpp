// What the core found wrong with a run.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "bits.hpp"
#include "order/detector.hpp"

namespace emulator {

constexpr u32 kNoInstruction = 0xFFFFFFFF;

enum class BarrierKind : u32 { kNone, kMBarrier, kNamed, kCluster };

// The barrier that a warp waits at, and the state in which it is.
struct AwaitedBarrier {
  BarrierKind kind = BarrierKind::kNone;
  u64 address = 0;                       // of an mbarrier, with its CTA's rank; else the number of a named barrier
  u64 phase = 0;                         // phases that are complete
  u32 expected = 0, missing = 0;         // arrivals of the open phase: of an mbarrier, else threads
  i64 missing_bytes = 0, announced = 0;  // of the open phase; negative where more came than were announced
  u32 initialised = kNoInstruction, arrived = kNoInstruction;  // the last instruction that did it
  u32 announcing = kNoInstruction, delivering = kNoInstruction;
  u32 alike = kNoInstruction;  // if nobody arrived: the last arrival at a barrier that the same instruction initialised
};

// The location of a warp that has not ended.
struct WaitingWarp {
  u32 cta[3];
  u32 warp;
  u32 instruction;
  AwaitedBarrier barrier;
};

// One fault, the first of its kind at its instruction; `count` is how often it occurred.
//
// `suspect`: a fault only if the value read matters (a race with a read, a read of unwritten memory). The read returned
// poison, or returns poison or taint when the run is repeated.
struct Finding {
  std::string kind;
  std::string message;
  u32 instruction = kNoInstruction;
  u32 other = kNoInstruction;  // the conflicting instruction
  u32 cta[3] = {0, 0, 0};
  u32 warp = 0;
  u32 lanes = 0;
  u64 address = 0;
  bool suspect = false;
  u64 count = 1;
  // Of a run that ended in the middle: warps that had not ended, and how many more there were.
  std::vector<WaitingWarp> waiting;
  u32 more_waiting = 0;
};

// A read that a later write conflicted with: (linear CTA, warp, operation count of the warp at the read).
struct SuspectRead {
  u32 cta, warp, moment;
  auto operator<=>(const SuspectRead&) const = default;
};

class Report {
 public:
  // Faults that are kept, and as many suspects, so that neither hides the others. What ended the run comes on top.
  static constexpr u64 kMaxFindings = 64;

  // The finding to fill in if this is its first occurrence, else null. Counts either way.
  Finding* open(const std::string& kind, u32 instruction, u32 other, bool suspect) {
    const std::string key = kind + '/' + std::to_string(instruction) + '/' + std::to_string(other) + (suspect ? "?" : "");
    if (const auto at = index_.find(key); at != index_.end()) {
      ++findings_[at->second].count;
      return nullptr;
    }
    if (instruction != kNoInstruction && count_[suspect]++ >= kMaxFindings) return nullptr;
    index_.emplace(key, findings_.size());
    findings_.push_back({});
    Finding& finding = findings_.back();
    finding.kind = kind;
    finding.instruction = instruction;
    finding.other = other;
    finding.suspect = suspect;
    return &finding;
  }

  const std::vector<Finding>& findings() const { return findings_; }

 private:
  u64 count_[2] = {};
  std::vector<Finding> findings_;
  std::unordered_map<std::string, std::size_t> index_;
};

}  // namespace emulator
