// Loops in which a warp waits for other agents: reads that return the same value while no memory has changed.
//
// Such a read yields the turn, so that waiting costs one iteration of the loop per turn. If the registers are unchanged as
// well, the warp repeats itself until another agent acts; if no other agent can act, that is a deadlock. If the registers
// differ, the warp may be counting attempts: after some rounds it then gets whole turns until the loop ends.
#include <cstring>

#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr u32 kLookedAt = 8;  // rounds without an event after which registers are compared

// A hash of a warp's registers and local memory; never 0.
u64 state_of(const Warp& warp) {
  const u32 words = warp.run->program.register_bytes / 8;
  u64 lanes[4] = {1, 2, 3, 4};
  u32 i = 0;
  for (; i + 4 <= words; i += 4) {
    for (u32 k = 0; k < 4; ++k) {
      u64 word;
      std::memcpy(&word, warp.registers + 8ull * (i + k), sizeof word);
      lanes[k] = mixed(lanes[k], word);
    }
  }
  u64 state = warp.local_changes;
  for (const u64 lane : lanes) state = mixed(state, lane);
  return state | 1;
}

Poll& poll_of(Polls& polls, const Op& op) {
  for (Poll& poll : polls.kept) {
    if (poll.op == &op) return poll;
  }
  return polls.kept[polls.oldest++ % Polls::kKept];
}

}  // namespace

void note_poll(Warp& warp, const Op& op, u64 seen) {
  Run& run = *warp.run;
  Poll& poll = poll_of(warp.polls, op);
  if (poll.op != &op || poll.seen != seen || poll.changes != run.changes()) {
    poll = {&op, seen, run.changes(), 0};
    return;
  }
  if (run.hurried()) return;
  warp.yielded = true;
  const u64 state = run.idle() < kLookedAt ? 0 : state_of(warp);
  run.progressed = run.progressed || !state || poll.state != state;
  poll.state = state;
}

}  // namespace emulator
