// What of a handler is recorded, by its name.
#pragma once

#include <array>
#include <vector>

#include "op.hpp"

namespace emulator {

enum Form : u32 {
  kNothing,
  kArrival,
  kCopyArrival,
  kTest,
  kTensorLoad,
  kRangeLoad,
  kSharedCopy,
  kTensorStore,
  kRangeStore,
  kStoreCommit,
  kStoreWait,
  kWgmma,
  kWgmmaCommit,
  kWgmmaWait,
  kMma,
  kAsyncCopy,
  kCopyCommit,
  kCopyWait,
  kSync,
  kBarArrive,
  kClusterArrive,
  kClusterWait,
  kAnyFence,
  kWaitPreceding,
  kTriggerNext,
  kLoadOf,
  kStoreOf,
  kAtomicOf,
  kLoadMatrix,
  kStoreMatrix,
  kRemote,
};

struct Handled {
  Form form = kNothing;
  u32 bytes = 0;  // per lane and value
  bool wide = false;
  std::array<Operand, 4> operands{};  // mbarrier, generic or ctas, bytes, threads
};

// An operand of a handler by its name; an empty one where it has none.
Operand named(const Registered& entry, const char* name);

// Of all handlers, by their numbers.
const std::vector<Handled>& all_handled();
inline const Handled& handled(const Op& op) { return all_handled()[op.handler]; }

}  // namespace emulator
