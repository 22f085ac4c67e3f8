// Fences of every scope and proxy, and griddepcontrol.
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr Operand kFenceScope = number("scope", Field::kP, "Scope");

void publish_initialisations(Warp& warp) {
  for (const Cta& cta : warp.cta->cluster->ctas) {
    for (const auto& [offset, barrier] : cta.mbarriers) {
      if (initialisation_ordered(warp, barrier)) warp.view.barriers.raise(barrier.component, 1);
    }
  }
}

void fence(Warp& warp, const Op& op, u32) {
  View& view = warp.view;
  for (u32 scope = 0; scope <= kFenceScope(op); ++scope) {
    if (const auto observed = std::exchange(view.observed[scope], nullptr)) {
      acquire_wait(warp, *observed);
      join_foreign(view.foreign, observed);
      if (const auto own = observed->find(warp.cta->cluster->index); own != observed->end()) warp.acquire(own->second);
    }
  }
  for (u32 scope = 0; scope <= kFenceScope(op); ++scope) view.fenced[scope].join(warp.now().events);
}

void fence_proxy_async(Warp& warp, const Op&, u32) {
  warp.view.proxied.join(warp.now().events);
  publish_initialisations(warp);
}

void fence_mbarrier_init(Warp& warp, const Op&, u32) { publish_initialisations(warp); }

void dependency_wait(Warp& warp, const Op&, u32) {
  warp.run->waited = warp.cta->waited = true;
  warp.acquire(kDependencyComponent, 1);
}

// The first thread of a CTA that executes it triggers the next launch for this CTA.
void dependency_trigger(Warp& warp, const Op&, u32) {
  if (!warp.view.events.at(kDependencyComponent)) warp.cta->triggered = true;
}

void nothing(Warp&, const Op&, u32) {}

bool has_scope(const OpRecord& op) { return kFenceScope(op) < kScopes; }

}  // namespace

void register_fence(Registry& to) {
  to.add("fence", fence, {kFenceScope}, has_scope);
  to.add("fence.proxy.async", fence_proxy_async, {});
  to.add("fence.mbarrier_init", fence_mbarrier_init, {});
  to.add("griddepcontrol.wait", dependency_wait, {});
  to.add("griddepcontrol.launch_dependents", dependency_trigger, {});
  to.add("nothing", nothing, {});
}

}  // namespace emulator
