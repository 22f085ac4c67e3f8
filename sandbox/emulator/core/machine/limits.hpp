// Limits past which a kernel is unsupported. Without them a short loop could take all memory there is.
#pragma once

#include <cstddef>

#include "bits.hpp"

namespace emulator {

constexpr u64 kMaxCtas = 1 << 24;              // of a grid that is run whole
constexpr u64 kMaxClusterBytes = 1ull << 30;   // what a cluster takes when it starts
constexpr u64 kMaxResidentBytes = 1ull << 31;  // the same of all under way
constexpr std::size_t kMaxAgents = 1 << 13;    // of a cluster: its warps' and every mbarrier that was ever initialised
constexpr std::size_t kMaxPending = 1 << 16;   // asynchronous operations under way together
constexpr u32 kMaxIssued = 1 << 18;            // copies, products, stores and groups of them that a warp has not waited for
constexpr std::size_t kMaxSuspects = 1 << 20;
constexpr std::size_t kMaxPublished = 1 << 20;

}  // namespace emulator
