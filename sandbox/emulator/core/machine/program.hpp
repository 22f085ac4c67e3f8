// A program: its operations, the register file that they work on, and the memory that it declares.
#pragma once

#include <vector>

#include "op.hpp"

namespace emulator {

// A slot of a warp's register file that holds a special register, set when the CTA starts.
struct SpecialSlot {
  u32 slot;
  u32 which;  // Special
};
// clang-format off
enum Special : u32 {
  kTidX, kTidY, kTidZ, kNtidX, kNtidY, kNtidZ, kCtaidX, kCtaidY, kCtaidZ, kNctaidX, kNctaidY, kNctaidZ, kLaneId, kWarpId,
  kNwarpId, kClusterCtaidX, kClusterCtaidY, kClusterCtaidZ, kClusterNctaidX, kClusterNctaidY, kClusterNctaidZ,
  kClusterCtarank, kClusterNctarank, kClusteridX, kClusteridY, kClusteridZ, kNclusteridX, kNclusteridY, kNclusteridZ,
  kDynamicSmemSize, kTotalSmemSize, kLanemaskEq, kLanemaskLt, kLanemaskLe, kLanemaskGt, kLanemaskGe, kSmid, kNsmid,
  kIsExplicitCluster,
  kSpecials
};
// As PTX names them, in the order of Special.
constexpr const char* kSpecialNames[] = {
  "tid.x", "tid.y", "tid.z", "ntid.x", "ntid.y", "ntid.z", "ctaid.x", "ctaid.y", "ctaid.z", "nctaid.x", "nctaid.y",
  "nctaid.z", "laneid", "warpid", "nwarpid", "cluster_ctaid.x", "cluster_ctaid.y", "cluster_ctaid.z",
  "cluster_nctaid.x", "cluster_nctaid.y", "cluster_nctaid.z", "cluster_ctarank", "cluster_nctarank", "clusterid.x",
  "clusterid.y", "clusterid.z", "nclusterid.x", "nclusterid.y", "nclusterid.z", "dynamic_smem_size",
  "total_smem_size", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "smid", "nsmid",
  "is_explicit_cluster",
};
static_assert(sizeof kSpecialNames / sizeof *kSpecialNames == kSpecials);
// clang-format on
struct SymbolSlot {
  u32 slot;
  u32 bytes;   // per lane: 4 or 8
  u32 offset;  // in shared memory
  bool generic;
};

struct Program {
  std::vector<Op> ops;
  std::vector<u32> lists;
  std::vector<u8> constants;  // the first bytes of every warp's register file
  u32 register_bytes = 0;
  std::vector<SpecialSlot> specials;
  std::vector<SymbolSlot> symbols;
  u32 static_smem_end = 0;                                      // offset at which dynamic shared memory begins
  u32 local_bytes = 0;                                          // per lane
  std::vector<std::vector<u32>> tracked_reads, tracked_writes;  // by operation: slots of wgmma registers that it touches
};

// Throws std::invalid_argument for a program whose operations could reach outside the register file, the lists or the table.
void check(const Program& program);

}  // namespace emulator
