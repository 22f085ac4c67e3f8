// Asynchronous work of a warp between its issue and its completion.
#pragma once

#include <memory>
#include <vector>

#include "op.hpp"
#include "order/clock.hpp"

namespace emulator {

struct Cluster;

// A copy by cp.async. Its source is read when it is issued.
struct LaneCopy {
  Epoch event;
  u32 address;    // shared
  u32 taint = 0;  // see keep_taint
  u8 data[16];
  u8 bytes, lane;
  bool written = false;   // into shared memory, perhaps at issue
  bool complete = false;  // its lane has waited for it, or it has arrived at an mbarrier
};
struct CopyGroup {
  u32 lanes;  // that have committed it and not waited for it
  u32 number;
};

// A wgmma that one warp has issued. It is executed when all four warps of the warpgroup have issued it.
struct Product {
  const Op* op = nullptr;
  u64 a = 0, b = 0;  // descriptors; a is unused where A lies in registers
  bool accumulate = false;
};

// Asynchronous work that has not completed.
struct Pending {
  explicit Pending(Cluster* cluster) : cluster(cluster) {}
  virtual ~Pending() = default;
  virtual void complete() = 0;
  Cluster* cluster;
  bool done = false;
};

// A bulk copy that reads shared memory, kept until the lane that issued it waits for its group.
struct BulkStore {
  u32 lane;
  const Op* op;  // that issued it
  std::shared_ptr<Pending> work;
};
struct StoreGroup {
  u32 lanes = 0;  // that have committed the group
  u32 number = 0;
  bool done = false;
  std::vector<BulkStore> stores;
};

}  // namespace emulator
