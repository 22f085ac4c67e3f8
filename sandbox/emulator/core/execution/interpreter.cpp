// The interpreter's loop: one operation of one warp at a time, for all lanes with that program counter.
#include <utility>

#include "machine/machine.hpp"
#include "timing/trace.hpp"

namespace emulator {

namespace {

struct Group {
  u32 pc = 0, lanes = 0;
};

u32 guarded(Warp& warp, const Op& op, u32 lanes) {
  if (!op.guard) return lanes;
  const u32 holds = warp.mask(op.guard);
  const u32 running = lanes & (op.flags & kNegated ? ~holds : holds);
  if (warp.run->options.taint) [[unlikely]]
    taint_guard(warp, op, lanes, running);
  return running;
}

void set_pc(Warp& warp, u32 lanes, u32 pc) {
  for (int lane = 0; lane < kLanes; ++lane) warp.lane_pc[lane] = lanes >> lane & 1 ? pc : warp.lane_pc[lane];
}

// The lanes whose program counter is `pc`.
u32 lanes_at(const Warp& warp, u32 pc) {
  u32 found = 0;
  const __m256i wanted = _mm256_set1_epi32(static_cast<int>(pc));
  for (int lane = 0; lane < kLanes; lane += 8) {
    const __m256i pcs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(warp.lane_pc + lane));
    const int equal = _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(pcs, wanted)));
    found |= static_cast<u32>(equal) << lane;
  }
  return found;
}

void spread(Warp& warp) {
  if (warp.converged) set_pc(warp, warp.live, warp.pc);
  warp.converged = false;
}

void execute(Warp& warp, const Op& op, u32 lanes) {
  Trace* trace = warp.run->trace;
  if (trace && trace->records(op)) [[unlikely]] {
    if (trace->before(warp, op, lanes)) op.run(warp, op, lanes);
    trace->after(warp, op, lanes);
    return;
  }
  op.run(warp, op, lanes);
}

void run_plain(Warp& warp, const Op& op, u32 lanes) {
  if (op.flags & kTracked) [[unlikely]] {
    note_tracked(warp, op, static_cast<u32>(&op - warp.run->program.ops.data()));
  }
  execute(warp, op, lanes);
}

// Accesses of peers to the shared memory of a CTA that ends: each must be complete for one of its warps.
void finish_remote(Cta& cta) {
  if (cta.remote.empty()) return;
  View end;
  for (Warp& warp : cta.warps) end.join(warp.now());
  cta.remote.each_incomplete(end, [&](const RemoteAccess& access) {
    Report& to = cta.cluster->run->report;
    Finding* finding = to.open(detector::kClusterExit, access.instruction, kNoInstruction, false);
    if (!finding) return;
    const Agent& agent = cta.cluster->agents[access.made.component];
    const std::string what =
        access.phase.value ? "an arrival at an mbarrier" : std::string(verb(access.access)) + " of shared memory";
    finding->message = what + " of CTA rank " + std::to_string(cta.rank) +
                       " may still be under way when that CTA ends: nothing orders it before the end";
    std::copy(std::begin(cta.cluster->ctas[agent.cta].id), std::end(cta.cluster->ctas[agent.cta].id), finding->cta);
    finding->warp = agent.warp;
    finding->lanes = 1u << access.lane;
    finding->address = access.address;
  });
}

void end_lanes(Warp& warp, u32 lanes) {
  warp.live &= ~lanes;
  ++warp.run->events;
  if (warp.live) {
    leave_barriers(warp, lanes);
    return;
  }
  if (warp.run->trace) [[unlikely]]
    warp.run->trace->ended(warp);
  finish_copies(warp);
  finish_stores(warp);
  finish_products(warp);
  if (!--warp.cta->live_warps) finish_remote(*warp.cta);
  --warp.cta->cluster->live_warps;
  leave_barriers(warp, lanes);
}

u32 branch_target(Warp& warp, const Op& op, int lane) {
  if (op.kind == kBranch) return static_cast<u32>(op.imm);
  const u32 index = warp.lanes<u32>(op.a)[lane];
  return warp.run->program.lists[op.list + std::min(index, op.count - 1)];
}

// Branches; the warp stays converged if all lanes take the same path.
void branch(Warp& warp, const Op& op, u32 lanes, u32 taken, u32 pc) {
  if (op.kind == kBranch && warp.converged && (taken == lanes || !taken)) {
    warp.pc = taken ? static_cast<u32>(op.imm) : pc + 1;
    return;
  }
  if (op.kind == kBranchIndexed && warp.run->options.taint) [[unlikely]]
    taint_indexed_branch(warp, op, taken);
  spread(warp);
  set_pc(warp, lanes & ~taken, pc + 1);
  for (u32 left = taken; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    warp.lane_pc[lane] = branch_target(warp, op, lane);
  }
}

// Whether the lanes include all members of a collective.
bool complete(Warp& warp, const Op& op, u32 lanes) {
  if (!(op.flags & kCollective)) return true;
  const u32 wanted = op.members ? warp.lanes<u32>(op.members)[first_lane(lanes)] & warp.live : warp.live;
  return (lanes & wanted) == wanted;
}

// The group of lanes to execute: the lowest program counter first, so that lanes reconverge after a branch. Groups take turns
// if that makes no progress. A group at a collective waits for its missing members.
Group choose(Warp& warp, u32* limit) {
  const Op* ops = warp.run->program.ops.data();
  Group groups[kLanes];
  u32 count = 0;
  for (u32 left = warp.runnable(); left; left &= ~groups[count++].lanes) {
    const u32 pc = warp.lane_pc[std::countr_zero(left)];
    groups[count] = {pc, lanes_at(warp, pc) & left};
  }
  std::sort(groups, groups + count, [](const Group& x, const Group& y) { return x.pc < y.pc; });
  u32 ready = 0;
  Group able[kLanes];
  for (u32 i = 0; i < count; ++i) {
    if (complete(warp, ops[groups[i].pc], groups[i].lanes)) able[ready++] = groups[i];
  }
  if (!ready) {
    // Every group waits at a collective, for lanes at a barrier or for lanes that never arrive.
    if (warp.blocked & warp.live) return {};
    const Group& first = groups[0];
    report(warp, ops[first.pc], first.lanes, detector::kDivergent, 0, "other member lanes never arrive");
    able[ready++] = first;
  }
  const Group chosen = able[warp.vain % ready];
  *limit = 0xFFFFFFFF;
  for (u32 i = 0; i < count; ++i) {
    if (groups[i].pc > chosen.pc) *limit = std::min(*limit, groups[i].pc);
  }
  return chosen;
}

// Executes lanes of a diverged warp until they reconverge with others, wait, or branch. False if the warp yields its turn.
bool advance_group(Warp& warp, u64* left) {
  u32 limit = 0;
  const Group group = choose(warp, &limit);
  if (!group.lanes) return false;
  if (group.lanes == warp.live) {
    warp.converged = true;
    warp.pc = group.pc;
    return true;
  }
  const Op* ops = warp.run->program.ops.data();
  u32 pc = group.pc;
  bool first = true;
  while (*left) {
    const Op& op = ops[pc];
    if (!first && (pc == limit || !complete(warp, op, group.lanes))) break;
    first = false;
    --*left;
    ++warp.moment;
    const u32 lanes = guarded(warp, op, group.lanes);
    if (op.kind == kPlain) {
      if (lanes) run_plain(warp, op, lanes);
      ++pc;
      continue;
    }
    if (op.kind == kPoll) {
      if (lanes) run_plain(warp, op, lanes);
      ++pc;
      if (!warp.yielded) continue;
      set_pc(warp, group.lanes, pc);
      ++warp.vain;
      return false;
    }
    if (op.kind == kBranch || op.kind == kBranchIndexed) {
      branch(warp, op, group.lanes, lanes, pc);
      return true;
    }
    if (op.kind == kExit) {
      set_pc(warp, group.lanes & ~lanes, pc + 1);
      if (lanes) end_lanes(warp, lanes);
      return warp.live != 0;
    }
    if (lanes) execute(warp, op, lanes);
    set_pc(warp, group.lanes, warp.waiting ? pc : pc + 1);
    if (warp.waiting || warp.yielded) {
      ++warp.vain;
      return false;
    }
    warp.vain = 0;
    return warp.runnable() != 0;
  }
  set_pc(warp, group.lanes, pc);
  return true;
}

// Executes a converged warp until it diverges, waits or ends. False if it yields its turn.
bool advance_converged(Warp& warp, u64* left) {
  const Op* ops = warp.run->program.ops.data();
  const u32 live = warp.live;
  u32 pc = warp.pc;
  while (*left) {
    const Op& op = ops[pc];
    --*left;
    ++warp.moment;
    const u32 lanes = guarded(warp, op, live);
    switch (op.kind) {
      case kPlain:
        if (lanes) run_plain(warp, op, lanes);
        ++pc;
        continue;
      case kPoll:
        if (lanes) run_plain(warp, op, lanes);
        ++pc;
        if (!warp.yielded) continue;
        warp.pc = pc;
        return false;
      case kBranch:
      case kBranchIndexed:
        branch(warp, op, live, lanes, pc);
        if (!warp.converged) return true;
        pc = warp.pc;
        continue;
      case kExit:
        warp.pc = pc + 1;
        if (lanes) end_lanes(warp, lanes);
        return warp.live != 0;
      default:
        if (lanes) execute(warp, op, lanes);
        warp.pc = warp.waiting ? pc : pc + 1;
        if (warp.blocked) spread(warp);
        if (warp.waiting || warp.yielded || !warp.runnable()) return false;
        if (!warp.converged) return true;
        pc = warp.pc;
    }
  }
  warp.pc = pc;
  return true;
}

}  // namespace

u64 advance(Warp& warp, u64 most) {
  u64& left = warp.run->left;
  left = most;
  warp.waiting = warp.yielded = false;
  while (left && warp.runnable()) {
    if (!(warp.converged ? advance_converged(warp, &left) : advance_group(warp, &left))) break;
  }
  if (!left && !warp.converged) ++warp.vain;  // lanes that spin on others of their warp yield to them
  return most - std::exchange(left, 0);
}

}  // namespace emulator
