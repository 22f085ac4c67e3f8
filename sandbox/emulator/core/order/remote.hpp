// Accesses to a CTA's shared memory by other CTAs of its cluster. All of them must be complete when the CTA ends.
#pragma once

#include <compare>
#include <map>

#include "order/clock.hpp"
#include "order/shadow.hpp"

namespace emulator {

// `made`: the event that the access is. `phase`: of the mbarrier that counts an arrival, which is complete once that phase is
// over; a value of 0 for other accesses.
struct RemoteAccess {
  Epoch made, phase;
  Access access;
  u32 instruction;
  u32 lane;
  u32 address;  // shared

  // Whether it is complete in this view. A read has returned its value once its thread has arrived at any barrier.
  bool complete(const View& view) const {
    return view.events.covers(made) || (phase.value && view.events.covers(phase)) ||
           (access == Access::kRead && view.executed.covers(made));
  }
};

// The last access of each agent, kind and mbarrier. The earlier ones are complete if the last one is.
class RemoteAccesses {
 public:
  void note(const RemoteAccess& access) {
    last_.insert_or_assign(Key{access.made.component, access.phase.component, access.access}, access);
  }
  void clear() { last_.clear(); }
  bool empty() const { return last_.empty(); }

  template <typename Visit>
  void each_incomplete(const View& view, Visit visit) const {
    for (const auto& [key, access] : last_) {
      if (!access.complete(view)) visit(access);
    }
  }

 private:
  struct Key {
    u32 agent, mbarrier;
    Access access;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, RemoteAccess> last_;
};

}  // namespace emulator
