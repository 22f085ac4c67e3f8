// Asynchronous work of a warp between its issue and its completion.
#pragma once

#include <memory>
#include <vector>

#include "op.hpp"

namespace emulator {

struct Cluster;

// A copy by cp.async that has been issued; its source was read then.
struct LaneCopy {
  u32 address;  // shared
  u32 bytes;
  u32 lane;
  u8 data[16];
  u32 taint = 0;  // see keep_taint
};
struct CopyGroup {
  u32 lanes = 0;  // that have committed it and not waited for it
  u32 number = 0;
  std::vector<LaneCopy> copies;
};

// A wgmma that one warp has issued; it is executed when the four warps of the warpgroup have.
struct Product {
  const Op* op = nullptr;
  u64 a = 0, b = 0;  // descriptors; a is unused where A lies in registers
  bool accumulate = false;
};

// Work that an asynchronous engine has been given and not done yet.
struct Pending {
  explicit Pending(Cluster* cluster) : cluster(cluster) {}
  virtual ~Pending() = default;
  virtual void complete() = 0;
  Cluster* cluster;
  bool done = false;
};

// Bulk copies that read shared memory, kept until the lane that issued them waits for their group.
struct BulkStore {
  u32 lane;
  const Op* op;  // that issued it
  std::shared_ptr<Pending> work;
};
struct StoreGroup {
  u32 lanes = 0;  // that have committed it
  u32 number = 0;
  bool done = false;
  std::vector<BulkStore> stores;
};

}  // namespace emulator
