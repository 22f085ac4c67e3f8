// Reports of conflicting accesses.
#include "machine/machine.hpp"

namespace emulator {

namespace {

// The agent of an event, in words.
std::string name_of(const Cluster& cluster, Epoch event) {
  if (event.component >= cluster.agents.size()) return "another warp";
  const Agent& agent = cluster.agents[event.component];
  const std::string warp = "warp " + std::to_string(agent.warp) +
                           (cluster.ctas.size() > 1 ? " of CTA rank " + std::to_string(agent.cta) : std::string());
  switch (agent.kind) {
    case AgentKind::kDependency:
      return "a preceding kernel";
    case AgentKind::kWarp:
      return warp;
    case AgentKind::kCopies:
      return "the cp.async in flight of " + warp;
    case AgentKind::kProducts:
      return "the wgmma in flight of the warpgroup of " + warp;
    case AgentKind::kStores:
      return "the bulk store in flight of " + warp;
    case AgentKind::kBarrier:
      return "a bulk copy in flight";
  }
  return warp;
}

// The same as seen by a warp: events of its own that other lanes are not ordered after without __syncwarp.
std::string who(const Warp& warp, const Cluster& cluster, Epoch event) {
  const Agent* agent = event.component < cluster.agents.size() ? &cluster.agents[event.component] : nullptr;
  const bool own = agent && agent->kind != AgentKind::kBarrier && agent->cta == warp.cta->rank && agent->warp == warp.index;
  if (event.component == warp.component) return "another lane of the warp, without __syncwarp between them";
  if (!warp.view.events.covers(event)) return name_of(cluster, event);
  return name_of(cluster, event) + (own ? ", begun and" : ",") + " waited for by another lane, without __syncwarp behind it";
}

bool is_async(const Cluster& cluster, Epoch event) {
  return event.component < cluster.agents.size() && cluster.agents[event.component].kind != AgentKind::kWarp;
}

}  // namespace

const char* unordered_because(const Warp& warp) {
  return warp.view.events.at(kDependencyComponent) ? "the launch waited for ends without griddepcontrol.wait of its own"
                                                   : "before griddepcontrol.wait";
}

bool report_conflict(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, const Conflict& conflict,
                     const Touch& touch, const Cluster* other_cluster, const char* race_kind) {
  if (conflict.kind == ConflictKind::kNone) return false;
  const std::string what = std::string(verb(access)) + " of " + std::to_string(bytes) + " bytes";
  const std::string other = other_cluster ? who(warp, *other_cluster, conflict.other) : std::string("another CTA");
  const bool flying = (other_cluster && is_async(*other_cluster, conflict.other)) || touch.epoch.value;
  const char* race = flying ? detector::kAsyncRace : race_kind;
  const u32 lanes = 1u << lane;
  switch (conflict.kind) {
    case ConflictKind::kUnwritten:
      report(warp, op, lanes, detector::kUninitialisedRead, address, what + " of uninitialised memory", kNoInstruction, true);
      return true;
    case ConflictKind::kReadBehindWrite:
      report(warp, op, lanes, race, address, what + " is not ordered after the write by " + other, conflict.instruction,
             !touch.epoch.value);
      return true;
    case ConflictKind::kWriteBehindWrite:
      report(warp, op, lanes, race, address, what + " is not ordered after the write by " + other, conflict.instruction);
      return false;
    case ConflictKind::kWriteBehindRead: {
      // A read whose value is not used is harmless. Another run finds out by returning poison for it.
      const bool by_warp =
          other_cluster && conflict.other.component < other_cluster->agents.size() && !is_async(*other_cluster, conflict.other);
      if (by_warp) {
        const Agent& agent = other_cluster->agents[conflict.other.component];
        const Cta& reader = other_cluster->ctas[agent.cta];
        if (warp.run->suspects.size() >= kMaxSuspects) {
          warp.run->stop(detector::kUnsupported, "more than 2^20 reads that race with a write");
        } else {
          warp.run->suspects.insert({static_cast<u32>(reader.linear), agent.warp, conflict.other.value});
        }
      }
      report(warp, op, lanes, race, address, what + " is not ordered after the read by " + other, conflict.instruction,
             by_warp);
      return false;
    }
    case ConflictKind::kUnfenced:
      report(warp, op, lanes, detector::kMissingProxyFence, address,
             what + " through the async proxy of what " + other +
                 " wrote through the generic proxy, without fence.proxy.async between them",
             conflict.instruction);
      return true;
    case ConflictKind::kUnfinished: {
      const std::string other = "launch " + std::to_string(conflict.cluster) + " of the plan may still be using";
      report(warp, op, lanes, detector::kDependency, address, what + " that " + other + ": " + unordered_because(warp));
      return false;
    }
    case ConflictKind::kBarrier:
      report(warp, op, lanes, detector::kBarrierMisuse, address, what + " accesses a live mbarrier", conflict.instruction);
      return false;
    case ConflictKind::kNone:
      break;
  }
  return false;
}

}  // namespace emulator
