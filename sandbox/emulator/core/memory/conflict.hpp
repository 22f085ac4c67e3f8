// Reports of conflicting accesses.
#pragma once

#include "machine/machine.hpp"

namespace emulator {

inline const char* verb(Access access) { return access == Access::kRead ? "read" : "write"; }

// Why a preceding launch may still run.
const char* unordered_because(const Warp& warp);

// Reports a conflict. Returns whether the value read is to be replaced by poison.
bool report_conflict(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, const Conflict& conflict,
                     const Touch& touch, const Cluster* other_cluster, const char* race_kind);

}  // namespace emulator
