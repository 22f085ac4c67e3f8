// CTAs and clusters, and the barriers in them.
#pragma once

#include <map>
#include <vector>

#include "machine/warp.hpp"
#include "order/remote.hpp"
#include "order/shadow.hpp"

namespace emulator {

// An agent has one component of its cluster's clocks.
enum class AgentKind : u8 { kDependency, kWarp, kCopies, kProducts, kStores, kBarrier };
struct Agent {
  AgentKind kind;
  u32 cta, warp;  // rank in the cluster, index in the CTA
};
// Component 0 stands for the kernels that this one depends on. A warp has four components, in the order above. An mbarrier
// gets a component when it is initialised.
constexpr u32 kDependencyComponent = 0;

struct NamedBarrier {
  bool open = false;  // a thread has arrived
  u32 expected = 0;   // threads, set by the first arrival; 0: all of the CTA
  u32 arrived = 0;
  u32 holding = 0;  // arrived threads whose predicate is true, for bar.red
  View gathered;
  struct Waiting {
    Warp* warp;
    u32 lanes;
    const Op* op;
  };
  std::vector<Waiting> waiting;
};

struct MBarrier {
  u32 component = 0;
  u32 expected = 0, pending = 0;
  u64 phase = 0;
  i64 transactions = 0;  // bytes expected and not yet delivered
  Epoch initialised;
  View open, done;                   // what arrivals of this phase, and of the phases before, have released
  u32 instruction = kNoInstruction;  // that initialised it
  struct Copied {
    const Warp* warp;
    u32 component, number;
  };
  std::vector<Copied> copied;  // copies by cp.async that arrived in this phase
  // For the report of a deadlock: bytes announced in this phase, and the last instruction that announced, delivered, arrived.
  i64 announced = 0;
  u32 announced_at = kNoInstruction, delivered_at = kNoInstruction, arrived_at = kNoInstruction;
};

struct Cta {
  Cluster* cluster = nullptr;
  u32 rank = 0;
  u32 id[3] = {};
  u64 linear = 0;
  u32 smem_end = 0;                        // offset past its shared memory
  u32 smid = 0, first_warp = 0;            // the SM that it runs on, and its first warp's slot there
  bool waited = false, triggered = false;  // griddepcontrol: some thread waited; one triggered the next launch before that
  std::vector<u8> smem, taint;
  SharedShadow shadow;
  RemoteAccesses remote;
  std::vector<Warp> warps;
  NamedBarrier barriers[16];
  std::map<u32, MBarrier> mbarriers;                            // by offset
  std::vector<std::map<u32, MBarrier>::node_type> invalidated;  // on which asynchronous work may still complete
  u32 live_warps = 0;

  // Null if no mbarrier lies there. Most look-ups are for the one that was found last.
  MBarrier* mbarrier(u32 offset) {
    if (found && found_at == offset) return found;
    const auto at = mbarriers.find(offset);
    found = at != mbarriers.end() ? &at->second : nullptr;
    found_at = offset;
    return found;
  }
  MBarrier* found = nullptr;
  u32 found_at = 0;
};

inline u32 live_lanes(const Cta& cta) {
  u32 lanes = 0;
  for (const Warp& warp : cta.warps) lanes += std::popcount(warp.live);
  return lanes;
}

struct Cluster {
  Run* run = nullptr;
  u32 index = 0;  // linear, in the grid
  u32 id[3] = {};
  std::vector<Cta> ctas;
  std::vector<u8> register_files;
  std::vector<Agent> agents;  // by component
  u64 barrier_phase = 0;
  u32 barrier_arrived = 0;  // lanes
  View barrier_open, barrier_done;
  u32 live_warps = 0;
};

}  // namespace emulator
