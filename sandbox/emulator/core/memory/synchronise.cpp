// Synchronisation through memory: releases that writes publish, and acquires of reads.
#include "machine/machine.hpp"

namespace emulator {

namespace {

Publication publication(const Warp& warp, Scope scope, bool shared, u64 address) {
  const u64 group = scope == kCtaScope ? warp.cta->linear : scope == kClusterScope ? warp.cta->cluster->index : 0;
  return {scope, shared, group, address};
}

void acquire_published(Warp& warp, const Publication& at, bool acquires) {
  const auto found = warp.run->published.find(at);
  if (found == warp.run->published.end()) return;
  if (acquires) acquire_wait(warp, *found->second);
  join_foreign(acquires ? warp.view.foreign : warp.view.observed[at.scope], found->second);
  if (!acquires) return;
  if (const auto own = found->second->find(warp.cta->cluster->index); own != found->second->end()) warp.acquire(own->second);
}

void publish(Warp& warp, const Publication& at, bool releases) {
  const Clock& fenced = warp.view.fenced[at.scope];
  if (!releases && fenced.empty()) return;  // reductions of a whole matrix would fill the map
  if (warp.run->published.size() >= kMaxPublished) {
    warp.run->stop(detector::kUnsupported, "more than 2^20 locations by which warps synchronise");
    return;
  }
  auto mine = std::make_shared<ForeignClocks>();
  if (warp.view.foreign) *mine = *warp.view.foreign;
  (*mine)[warp.cta->cluster->index].join(releases ? warp.now().events : fenced);
  join_foreign(warp.run->published[at], mine);
}

}  // namespace

// A CTA of another cluster that waited for preceding kernels has released their completion.
void acquire_wait(Warp& warp, const ForeignClocks& observed) {
  if (!warp.run->launch.running) return;
  for (const auto& [cluster, clock] : observed) {
    if (clock.at(kDependencyComponent)) warp.acquire(kDependencyComponent, 1);
  }
}

// A releasing write publishes the whole view, a relaxed one what a fence came after. An acquiring read acquires what is
// published; a relaxed one keeps it for a later fence. Each access does so at every scope up to its own, so that two accesses
// synchronise at the narrowest scope that includes both threads, if both accesses have at least that scope.
void synchronise(Warp& warp, Space space, u64 address, MemoryOrder order, bool writes) {
  if (order.semantics == kWeak || !warp.run->options.races || warp.run->shadowing) return;
  if (space == kGeneric && address - kSharedWindow < kWindow) {
    space = kShared;
    address -= kSharedWindow;
  }
  const Scope widest = space == kShared ? std::min(order.scope, kClusterScope) : order.scope;
  for (u32 scope = 0; scope <= widest; ++scope) {
    const Publication at = publication(warp, static_cast<Scope>(scope), space == kShared, address);
    acquire_published(warp, at, order.acquires());
    if (writes) publish(warp, at, order.releases());
  }
}

}  // namespace emulator
