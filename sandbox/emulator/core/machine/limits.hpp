// Limits past which a kernel is unsupported. Without them a short loop could take all memory there is.
#pragma once

#include <cstddef>

#include "bits.hpp"

namespace emulator {

constexpr u64 kMaxCtas = 1 << 24;              // of a whole grid
constexpr u64 kMaxClusterBytes = 1ull << 30;   // of a cluster when it starts
constexpr u64 kMaxResidentBytes = 1ull << 31;  // of all resident clusters
constexpr std::size_t kMaxAgents = 1 << 13;    // of a cluster: of its warps, and one per initialised mbarrier
constexpr std::size_t kMaxPending = 1 << 16;   // asynchronous operations in flight
constexpr u32 kMaxIssued = 1 << 18;            // copies, products, stores and their groups that a warp has not waited for
constexpr std::size_t kMaxSuspects = 1 << 20;
constexpr std::size_t kMaxPublished = 1 << 20;

}  // namespace emulator
