// Vector clocks: the events that happen before an agent's present.
//
// Every warp and every asynchronous agent of a cluster has a component. The value of a warp is its operation count; that of an
// asynchronous agent counts its groups or phases. An event (component, value) happens before a warp's present if the warp's
// clock has at least that value for the component. Source: Flanagan and Freund, FastTrack (PLDI 2009).
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "bits.hpp"

namespace emulator {

struct Epoch {
  u32 component = 0;
  u32 value = 0;  // 0: no event
};

// Components of a warp: itself, and the engines that copy, multiply and store for it.
constexpr u32 kAgentsPerWarp = 4;
enum OwnAgent : u32 { kOwnWarp, kOwnCopies, kOwnProducts, kOwnStores };

// Lanes of a warp that have parted from the others at a commit of cp.async or a wait for it: their copies have a component of
// their own. `ordered`: as of the warp's own agents. `parent`: the stream that they parted from, by index; 0 is the warp's.
struct CopyStream {
  u32 component, lanes;
  u32 parent = 0;
  u32 ordered = 0;
};

class Clock {
 public:
  u32 at(u32 component) const { return component < values_.size() ? values_[component] : 0; }
  bool empty() const { return values_.empty(); }
  bool covers(Epoch event) const { return at(event.component) >= event.value; }

  void set(u32 component, u32 value) {
    if (component >= values_.size()) values_.resize(component + 1, 0);
    values_[component] = value;
  }
  void raise(u32 component, u32 value) {
    if (at(component) < value) set(component, value);
  }
  void join(const Clock& other) {
    if (other.values_.size() > values_.size()) values_.resize(other.values_.size(), 0);
    const std::size_t size = other.values_.size();
    u32* mine = values_.data();
    const u32* theirs = other.values_.data();
    for (std::size_t i = 0; i < size; ++i) mine[i] = std::max(mine[i], theirs[i]);
  }
  void clear() { std::fill(values_.begin(), values_.end(), 0); }

 private:
  std::vector<u32> values_;
};

using ForeignClocks = std::map<u32, Clock>;  // by cluster

inline void join_foreign(std::shared_ptr<const ForeignClocks>& mine, const std::shared_ptr<const ForeignClocks>& other) {
  if (!other || mine == other) return;
  if (!mine) {
    mine = other;
    return;
  }
  auto merged = std::make_shared<ForeignClocks>(*mine);
  for (const auto& [cluster, clock] : *other) (*merged)[cluster].join(clock);
  mine = std::move(merged);
}

// The scope of a memory order: a release is visible only to acquires within its scope.
enum Scope : u32 { kCtaScope, kClusterScope, kDeviceScope };
constexpr u32 kScopes = 3;

// What happens before the present of a warp, or what a synchronisation object has released.
//
// `events`: of this cluster. `proxied`: the part that a fence.proxy.async has made visible to the async proxy. `fenced`: the
// part that a fence of that scope or a wider one lets a relaxed atomic release. `barriers`: mbarriers, by their component,
// whose initialisation is released. `foreign`: events of other clusters, acquired through global memory. `observed`: what
// relaxed accesses of that scope or a wider one have read, until a fence acquires it. These two are null while empty.
// `executed`: events before relaxed arrivals at the cluster's barrier. Their reads are over, their writes may be under way.
struct View {
  Clock events, proxied, fenced[kScopes], barriers, executed;
  std::shared_ptr<const ForeignClocks> foreign, observed[kScopes];

  void join(const View& other) {
    events.join(other.events);
    proxied.join(other.proxied);
    barriers.join(other.barriers);
    executed.join(other.executed);
    join_foreign(foreign, other.foreign);
    for (u32 scope = 0; scope < kScopes; ++scope) {
      fenced[scope].join(other.fenced[scope]);
      join_foreign(observed[scope], other.observed[scope]);
    }
  }

  void clear() { *this = View(); }
};

}  // namespace emulator
