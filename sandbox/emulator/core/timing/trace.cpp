#include "timing/trace.hpp"

#include <algorithm>

#include "asynchronous/tensor_box.hpp"
#include "machine/machine.hpp"
#include "matrix/product.hpp"
#include "timing/form.hpp"

namespace emulator {

namespace {

// An mbarrier's address in shared memory, with the CTA's rank.
u32 barrier_at(Warp& warp, const Op& op, int lane) {
  const Handled& form = handled(op);
  return shared_address(warp, op, form.operands[0], lane);
}

}  // namespace

Trace::Trace(u64 most_rows) : most_rows_(most_rows) {
  rows.reserve(most_rows);
  for (const Handled& each : all_handled()) recorded_.push_back(each.form != kNothing);
}

u32 Trace::stream_of(Warp& warp) {
  if (warp.cta->linear != cta_) {
    const auto [at, fresh] = places_.try_emplace(warp.cta->linear, static_cast<u32>(ctas.size()));
    if (fresh) ctas.push_back(warp.cta->linear);
    cta_ = warp.cta->linear, place_ = at->second;
  }
  return place_ * 32 + warp.index;
}

Trace::Last& Trace::last_of(u32 stream) {
  if (stream >= last_.size()) last_.resize(stream + 1);
  return last_[stream];
}

// Numbers of events of one place follow each other. Addresses and CTAs with offsets leave the highest byte free.
u32 Trace::token(u64 what, u64 where, u64 number) {
  std::vector<u32>& known = known_[what << 56 | where];
  if (number >= known.size()) known.resize(number + 1);
  if (!known[number]) known[number] = tokens++;
  return known[number];
}

TraceRow& Trace::add(Warp& warp, const Op& op, TraceKind kind, u32 amount, u32 parts, u32 token) {
  const u32 stream = stream_of(warp);
  Last& last = last_of(stream);
  rows.push_back({stream, kind, warp.moment - last.moment, op.instruction, amount, parts, token, 0, 0});
  last.moment = warp.moment;
  last.polls.clear();
  if (rows.size() >= most_rows_) warp.run->stopped = true;
  return rows.back();
}

// The token of a phase of an mbarrier: the present one, or one before it.
u32 Trace::phase_token(Warp& warp, u32 address, i64 before) {
  Cta* cta = cta_of(warp, address);
  if (!cta) return 0;
  const MBarrier* barrier = cta->mbarrier(address & kOffsetMask);
  if (!barrier || static_cast<i64>(barrier->phase) < before) return 0;
  return token(kPhase, cta->linear << 24 | (address & kOffsetMask), barrier->phase - static_cast<u64>(before));
}

void Trace::arrive(Warp& warp, const Op& op, u32 lanes, TraceKind kind) {
  u32 given[kLanes], *end = given;
  for (u32 left = lanes; left; left &= left - 1) {
    if (const u32 token = phase_token(warp, barrier_at(warp, op, std::countr_zero(left)), 0)) *end++ = token;
  }
  std::sort(given, end);
  end = std::unique(given, end);
  const u32 parts = kind == kTraceCommit ? u32{kTraceCopy} : 0;
  for (const u32* token = given; token != end; ++token)
    add(warp, op, kind, static_cast<u32>(std::popcount(lanes)), parts, *token);
}

void Trace::bulk_load(Warp& warp, const Op& op, u32 lanes, u32 form) {
  const Handled& how = handled(op);
  for (u32 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    u32 bytes = 0, parts = 1;
    u64 from = 0;
    if (form == kTensorLoad) {
      Box box;
      if (!find_box(warp, op, lane, &box, false)) continue;
      u32 begin = 0, end = 0;
      bytes = box.bytes(), parts = box.rows(), from = box.row(0, &begin, &end);
    } else {
      bytes = warp.lanes<u32>(how.operands[2](op))[lane];
      if (form == kRangeLoad) from = warp.lanes<u64>(op.b)[lane] + static_cast<u64>(op.imm);
    }
    const u32 barrier = barrier_at(warp, op, lane), ctas = how.operands[1](op);
    const u32 ranks = ctas ? warp.lanes<u16>(ctas)[lane] : 1u << (barrier >> kRankShift & 15);
    bool first = true;
    for (u32 rest = ranks; rest; rest &= rest - 1) {
      const u32 rank = static_cast<u32>(std::countr_zero(rest));
      const u32 token = phase_token(warp, (barrier & kOffsetMask) | rank << kRankShift, 0);
      const TraceKind kind = !first ? kTraceBulkTarget : form == kSharedCopy ? kTraceBulkShared : kTraceBulkLoad;
      TraceRow& row = add(warp, op, kind, bytes, parts, token);
      row.address = from;
      row.lanes = rank;
      first = false;
    }
  }
}

void Trace::bulk_store(Warp& warp, const Op& op, u32 lanes, bool tensor) {
  for (u32 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    u32 bytes = 0, parts = 1;
    u64 to = 0;
    if (tensor) {
      Box box;
      if (!find_box(warp, op, lane, &box, true)) continue;
      u32 begin = 0, end = 0;
      bytes = box.bytes(), parts = box.rows(), to = box.row(0, &begin, &end);
    } else {
      bytes = warp.lanes<u32>(handled(op).operands[2](op))[lane];
      to = warp.lanes<u64>(op.b)[lane] + static_cast<u64>(op.imm);
    }
    add(warp, op, kTraceBulkStore, bytes, parts, 0).address = to;
  }
}

void Trace::named_barrier(Warp& warp, const Op& op, u32 lanes, bool waits) {
  const int lane = first_lane(lanes);
  const u32 threads = handled(op).operands[3](op), number = warp.lanes<u32>(op.a)[lane];
  Gathered& at = gathered_[warp.cta->linear << 4 | (number & 15)];
  const u32 expected = threads ? warp.lanes<u32>(threads)[lane] : live_lanes(*warp.cta);
  const u32 given = token(kNamed, warp.cta->linear << 4 | (number & 15), at.generation);
  at.arrived += static_cast<u32>(std::popcount(lanes));
  if (at.arrived >= expected) at = {at.generation + 1, 0};
  add(warp, op, kTraceArrive, static_cast<u32>(std::popcount(lanes)), 1, given);
  if (waits) add(warp, op, kTraceWait, 0, 1, given);
}

// A test of an mbarrier that succeeded waits for the phase that is over. One that failed is forgotten.
void Trace::tested(Warp& warp, const Op& op, u32 lanes) {
  const u32 done = warp.mask(op.d) & lanes;
  if (done != lanes) {
    last_of(stream_of(warp)).moment = warp.moment;
    return;
  }
  if (const u32 over = phase_token(warp, barrier_at(warp, op, first_lane(lanes)), 1)) {
    add(warp, op, kTraceWait, 0, 0, over);
  }
}

void Trace::remote(Warp& warp, const Op& op, u32 lanes) {
  std::unordered_map<u32, u32> given;
  const u32 bytes = op.count * named(*registry().find(op.handler), "value_bytes")(op);
  for (u32 left = lanes; left; left &= left - 1) {
    given[phase_token(warp, barrier_at(warp, op, std::countr_zero(left)), 0)] += bytes;
  }
  for (const auto& [token, moved] : given) add(warp, op, kTraceRemoteStore, moved, 1, token);
}

bool Trace::before(Warp& warp, const Op& op, u32 lanes) {
  const Handled& how = handled(op);
  const u64 own = static_cast<u64>(warp.cta->linear) << 5 | warp.index;
  switch (how.form) {
    case kArrival:
      arrive(warp, op, lanes, kTraceArrive);
      break;
    case kCopyArrival:
      arrive(warp, op, lanes, kTraceCommit);
      break;
    case kTensorLoad:
    case kRangeLoad:
    case kSharedCopy:
      bulk_load(warp, op, lanes, how.form);
      break;
    case kTensorStore:
    case kRangeStore:
      bulk_store(warp, op, lanes, how.form == kTensorStore);
      break;
    case kStoreCommit:
      add(warp, op, kTraceCommit, 0, kTraceBulkStore, token(kStores, own, warp.store_number + 1));
      break;
    case kStoreWait:
      if (warp.store_number > op.imm)
        add(warp, op, kTraceWait, 0, kTraceBulkStore, token(kStores, own, warp.store_number - static_cast<u64>(op.imm)));
      break;
    case kWgmma:
      add(warp, op, kTraceProduct, op.p, op.count > op.p / (op.q & kHalfSums ? 4 : 2), 0);
      break;
    case kWgmmaCommit:
      add(warp, op, kTraceCommit, 0, kTraceProduct, token(kProducts, own, warp.product_number + 1));
      break;
    case kMma:
      add(warp, op, kTraceFragments, how.bytes, 0, 0);
      return false;
    case kAsyncCopy:
      copy(warp, op, lanes);
      break;
    case kCopyCommit:
      add(warp, op, kTraceCommit, 0, kTraceCopy, token(kCopies, own, warp.copy_number + 1));
      break;
    case kCopyWait:
      if (op.p) add(warp, op, kTraceCommit, 0, kTraceCopy, token(kCopies, own, warp.copy_number + 1));
      if (const i64 number = warp.copy_number + (op.p ? 1 : 0) - op.imm; number > 0)
        add(warp, op, kTraceWait, 0, kTraceCopy, token(kCopies, own, static_cast<u64>(number)));
      break;
    case kSync:
    case kBarArrive:
      named_barrier(warp, op, lanes, how.form == kSync);
      break;
    case kClusterArrive:
      add(warp, op, kTraceArrive, 0, 2, token(kWhole, warp.cta->cluster->index, warp.cta->cluster->barrier_phase));
      break;
    case kAnyFence:
      add(warp, op, kTraceFence, op.p, 0, 0);
      break;
    case kWaitPreceding:
      add(warp, op, kTraceDependency, 0, 0, 0);
      break;
    case kTriggerNext:
      add(warp, op, kTraceTrigger, 0, 0, 0);
      break;
    case kStoreOf:
      access(warp, op, lanes, kStoreOf, how.bytes * op.count);
      break;
    case kAtomicOf:
      if (op.kind != kPoll) access(warp, op, lanes, kAtomicOf, 4);
      break;
    case kLoadOf:
      if (op.kind != kPoll) access(warp, op, lanes, kLoadOf, how.bytes * op.count);
      break;
    case kLoadMatrix:
    case kStoreMatrix:
      matrices(warp, op, lanes, how.form == kLoadMatrix);
      break;
    case kRemote:
      remote(warp, op, lanes);
      break;
    default:
      break;
  }
  return true;
}

void Trace::after(Warp& warp, const Op& op, u32 lanes) {
  const Handled& how = handled(op);
  const u64 own = static_cast<u64>(warp.cta->linear) << 5 | warp.index;
  switch (how.form) {
    case kTest:
      tested(warp, op, lanes);
      break;
    case kWgmmaWait:
      if (!warp.waiting && warp.product_number > op.imm)
        add(warp, op, kTraceWait, 0, kTraceProduct, token(kProducts, own, warp.product_number - static_cast<u64>(op.imm)));
      break;
    case kClusterWait:
      if (!warp.waiting) add(warp, op, kTraceWait, 0, 2, token(kWhole, warp.cta->cluster->index, warp.cluster_phase));
      break;
    case kStoreOf:
    case kLoadOf:
    case kAtomicOf:
      note_change(warp, op, lanes, how.form);
      if (op.kind != kPoll) break;
      if (warp.yielded) {
        last_of(stream_of(warp)).moment = warp.moment;
      } else {
        access(warp, op, lanes, how.form, how.form == kAtomicOf ? 4 : how.bytes * op.count);
      }
      break;
    default:
      break;
  }
}

void Trace::ended(Warp& warp) {
  const u32 stream = stream_of(warp);
  rows.push_back({stream, kTraceEnd, warp.moment - last_of(stream).moment, kNoInstruction, 0, 0, 0, 0, 0});
}

}  // namespace emulator
