#include "timing/trace.hpp"

#include <algorithm>
#include <array>

#include "asynchronous/tensor_box.hpp"
#include "machine/machine.hpp"
#include "matrix/product.hpp"
#include "memory/access.hpp"

namespace emulator {

namespace {

enum What : u64 { kPhase, kNamed, kWhole, kProducts, kCopies, kStores, kVersion };
enum Form : u32 {
  kNothing,
  kArrival,
  kCopyArrival,
  kTest,
  kTensorLoad,
  kRangeLoad,
  kSharedCopy,
  kTensorStore,
  kRangeStore,
  kStoreCommit,
  kStoreWait,
  kWgmma,
  kWgmmaCommit,
  kWgmmaWait,
  kMma,
  kAsyncCopy,
  kCopyCommit,
  kCopyWait,
  kSync,
  kBarArrive,
  kClusterArrive,
  kClusterWait,
  kAnyFence,
  kWaitPreceding,
  kTriggerNext,
  kLoadOf,
  kStoreOf,
  kAtomicOf,
  kLoadMatrix,
  kStoreMatrix,
  kRemote,
};

// What of a handler is recorded, by its name.
struct Handled {
  Form form = kNothing;
  u32 bytes = 0;  // per lane and value
  bool wide = false;
  std::array<Operand, 4> operands{};  // mbarrier, generic or ctas, bytes, threads
};

Operand named(const Registered& entry, const char* name) {
  for (const Operand& operand : entry.operands) {
    if (std::string(operand.name) == name) return operand;
  }
  return {};
}

bool starts(const std::string& name, const char* prefix) { return name.rfind(prefix, 0) == 0; }

u32 bits_after(const std::string& name, const char* prefix) {
  return static_cast<u32>(std::stoul(name.substr(std::string(prefix).size()))) / 8;
}

// Multiply-adds of a shape as it is named, such as mma.m16n8k16.
u32 products_of(const std::string& name) {
  u32 product = 1, number = 0;
  for (const char each : name.substr(4, name.find('.', 4) - 4)) {
    if (each >= '0' && each <= '9') {
      number = 10 * number + static_cast<u32>(each - '0');
    } else {
      product *= std::max(number, 1u);
      number = 0;
    }
  }
  return product * std::max(number, 1u);
}

Handled handled(const Registered& entry) {
  static const std::unordered_map<std::string, Form> kForms = {
      {"mbarrier.arrive", kArrival},
      {"mbarrier.expect", kArrival},
      {"cp.async.arrive", kCopyArrival},
      {"mbarrier.test.parity", kTest},
      {"mbarrier.test.state", kTest},
      {"cp.async.bulk.tensor.load", kTensorLoad},
      {"cp.async.bulk.load", kRangeLoad},
      {"cp.async.bulk.shared", kSharedCopy},
      {"cp.async.bulk.tensor.store", kTensorStore},
      {"cp.async.bulk.store", kRangeStore},
      {"cp.async.bulk.commit", kStoreCommit},
      {"cp.async.bulk.wait", kStoreWait},
      {"wgmma", kWgmma},
      {"wgmma.commit", kWgmmaCommit},
      {"wgmma.wait", kWgmmaWait},
      {"cp.async", kAsyncCopy},
      {"cp.async.commit", kCopyCommit},
      {"cp.async.wait", kCopyWait},
      {"bar.sync", kSync},
      {"bar.arrive", kBarArrive},
      {"barrier.cluster.arrive", kClusterArrive},
      {"barrier.cluster.wait", kClusterWait},
      {"fence", kAnyFence},
      {"fence.proxy.async", kAnyFence},
      {"griddepcontrol.wait", kWaitPreceding},
      {"griddepcontrol.launch_dependents", kTriggerNext},
      {"st.async", kRemote},
  };
  Handled made;
  const std::string& name = entry.name;
  if (const auto at = kForms.find(name); at != kForms.end()) made.form = at->second;
  if (starts(name, "mma.m")) made.form = kMma, made.bytes = products_of(name);
  if (starts(name, "ldmatrix.")) made.form = kLoadMatrix;
  if (starts(name, "stmatrix.")) made.form = kStoreMatrix;
  made.wide = name.ends_with("a64") || name.ends_with("u64");
  if (starts(name, "ld.")) made.form = kLoadOf, made.bytes = bits_after(name, "ld.u");
  if (starts(name, "st.b")) made.form = kStoreOf, made.bytes = bits_after(name, "st.b");
  if (starts(name, "atom.")) made.form = kAtomicOf;
  const char* second = made.form == kTensorLoad || made.form == kRangeLoad || made.form == kSharedCopy ? "ctas" : "generic";
  made.operands = {named(entry, "mbarrier"), named(entry, second), named(entry, "bytes"), named(entry, "threads")};
  return made;
}

// By handler.
const std::vector<Handled>& all_handled() {
  static const std::vector<Handled> all = [] {
    std::vector<Handled> made;
    for (const Registered& entry : registry().all()) made.push_back(handled(entry));
    return made;
  }();
  return all;
}

const Handled& handled(const Op& op) { return all_handled()[op.handler]; }

// An mbarrier's address in shared memory, with the CTA's rank.
u32 barrier_at(Warp& warp, const Op& op, int lane) {
  const Handled& form = handled(op);
  return shared_address(warp, op, form.operands[0], lane);
}

u64 bytes_in_sectors(std::vector<u64>& sectors) {
  std::sort(sectors.begin(), sectors.end());
  sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
  return 32 * sectors.size();
}

u32 lines_of(const std::vector<u64>& sectors) {
  u32 lines = 0;
  u64 last = ~0ull;
  for (u64 sector : sectors) {
    lines += sector / 4 != last;
    last = sector / 4;
  }
  return lines;
}

constexpr u32 kBanks = 32;

// Passes that shared memory needs for words at some offsets: the most words of one bank, other addresses each.
u32 wavefronts(const u32* offsets, u32 count, u32 bytes) {
  u32 banks[kBanks][kLanes];  // distinct words of each: a lane has at most one in a bank
  u32 filled[kBanks] = {}, most = 0;
  for (u32 i = 0; i < count; ++i) {
    for (u32 byte = 0; byte < std::max(bytes, 4u); byte += 4) {
      const u32 word = (offsets[i] + byte) / 4, bank = word % kBanks;
      u32* end = banks[bank] + filled[bank];
      if (std::find(banks[bank], end, word) != end) continue;
      *end = word;
      most = std::max(most, ++filled[bank]);
    }
  }
  return most;
}

constexpr u32 kMaxReleases = 256;

// A word of global memory; null outside.
u32* word_at(Run& run, u64 address) {
  Buffer* buffer = buffer_at(run, address);
  if (!buffer || address % 4 || address - buffer->base + 4 > buffer->size || !buffer->writable) return nullptr;
  return reinterpret_cast<u32*>(buffer->host + (address - buffer->base));
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

void Trace::shared(Warp& warp, const Op& op, u32 lanes, const u32* offsets, u32 bytes, bool reads) {
  u32 chosen[kLanes], passes = 0;
  const int together = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
  for (int first = 0; first < kLanes; first += together) {
    u32 count = 0;
    for (int lane = first; lane < first + together; ++lane) {
      if (lanes >> lane & 1) chosen[count++] = offsets[lane];
    }
    if (count) passes += wavefronts(chosen, count, bytes);
  }
  add(warp, op, reads ? kTraceSharedLoad : kTraceSharedStore, passes, 1, 0);
}

void Trace::access(Warp& warp, const Op& op, u32 lanes, u32 form, u32 bytes) {
  const bool wide = handled(op).wide, reads = form == kLoadOf;
  const auto address = [&](int lane) {
    return wide ? effective_address<u64>(warp, op, lane) : u64{effective_address<u32>(warp, op, lane)};
  };
  const int lane = first_lane(lanes);
  const u64 first = address(lane);
  const bool windowed = kSpaceOf(op) == kGeneric && first - kSharedWindow < kWindow;
  if (kSpaceOf(op) == kShared || windowed) {
    u32 offsets[kLanes] = {};
    bool own = true;
    for (u32 left = lanes; left; left &= left - 1) {
      const int at = std::countr_zero(left);
      const u64 full = address(at) - (windowed ? kSharedWindow : 0);
      offsets[at] = static_cast<u32>(full) & kOffsetMask;
      own = own && (full >> kRankShift) == warp.cta->rank;
    }
    if (form == kAtomicOf) {
      add(warp, op, kTraceSharedLoad, static_cast<u32>(std::popcount(lanes)), 2, 0);
    } else if (own) {
      shared(warp, op, lanes, offsets, bytes, reads);
    } else {
      add(warp, op, reads ? kTraceRemoteLoad : kTraceRemoteStore, bytes * static_cast<u32>(std::popcount(lanes)), 1, 0);
    }
    return;
  }
  const bool generic_elsewhere = kSpaceOf(op) == kGeneric && (first - kParamWindow < kWindow || first - kLocalWindow < kWindow);
  if (kSpaceOf(op) == kParam || kSpaceOf(op) == kLocal || kSpaceOf(op) == kConst || generic_elsewhere) return;
  const bool synchronises = kSemanticsOf(op) != kWeak;
  u32 given = 0;
  if (form == kAtomicOf || (synchronises && !reads)) {
    const u64 version = ++versions_[first];
    const u32* word = word_at(*warp.run, first);
    before_ = word ? *word : 0;
    given = last_of(stream_of(warp)).given = token(kVersion, first, version);
    // A relaxed store is a store that others wait for: its warp goes on.
    if (form == kAtomicOf || kSemanticsOf(op) != kRelaxed) {
      const u32 before = version > 1 ? token(kVersion, first, version - 1) : 0;
      if (form == kAtomicOf && before) add(warp, op, kTraceWait, 0, 3, before);
      add(warp, op, kTraceAtomic, static_cast<u32>(std::popcount(lanes)), 0, given).address = first;
      return;
    }
  }
  std::vector<std::size_t> polls;
  if (synchronises && reads) {
    // What no traced CTA writes, others write when this warp writes for them.
    const auto at = versions_.find(first);
    const u32 written = at != versions_.end() ? token(kVersion, first, at->second) : last_of(stream_of(warp)).given;
    if (repeated(warp, op, first, written)) return;
    polls = std::move(last_of(stream_of(warp)).polls);
    add(warp, op, kTraceWait, 0, 3, written);
  }
  std::vector<u64> sectors;
  for (u32 left = lanes; left; left &= left - 1) {
    const u64 begin = address(std::countr_zero(left));
    for (u64 sector = begin / 32; sector <= (begin + bytes - 1) / 32; ++sector) sectors.push_back(sector);
  }
  const u64 moved = bytes_in_sectors(sectors);
  add(warp, op, reads ? kTraceLoad : kTraceStore, static_cast<u32>(moved), lines_of(sectors), given).address = first;
  if (synchronises && reads) {
    polls.push_back(rows.size() - 1);
    last_of(stream_of(warp)).polls = std::move(polls);
  }
}

// Whether a warp that has done nothing else since then reads the same words once more. The read before was in vain.
bool Trace::repeated(Warp& warp, const Op& op, u64 address, u32 written) {
  Last& last = last_of(stream_of(warp));
  for (const std::size_t row : last.polls) {
    if (rows[row].instruction != op.instruction || rows[row].address != address) continue;
    last.moment = warp.moment;
    rows[row - 1].token = written;
    return true;
  }
  return false;
}

void Trace::matrices(Warp& warp, const Op& op, u32 lanes, bool reads) {
  if (kSpaceOf(op) != kShared && kSpaceOf(op) != kGeneric) return;
  u32 passes = 0;
  for (u32 i = 0; i < op.count && i < 4; ++i) {
    u32 rows[8];
    for (u32 row = 0; row < 8; ++row) {
      const int lane = static_cast<int>(8 * i + row);
      rows[row] = static_cast<u32>(handled(op).wide ? effective_address<u64>(warp, op, lane) - kSharedWindow
                                                    : effective_address<u32>(warp, op, lane)) &
                  kOffsetMask;
    }
    passes += wavefronts(rows, 8, 16);
  }
  add(warp, op, reads ? kTraceSharedLoad : kTraceSharedStore, passes, 1, 0);
}

void Trace::copy(Warp& warp, const Op& op, u32 lanes) {
  const Registered& entry = *registry().find(op.handler);
  const Operand source = named(entry, "source");
  std::vector<u64> sectors;
  u64 first = 0;
  for (u32 left = lanes; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u64 address = lane_address(warp, source(op), source.bytes_of(op), lane) + static_cast<u64>(op.imm);
    if (!first) first = address;
    sectors.push_back(address / 32);
  }
  const u64 moved = bytes_in_sectors(sectors);
  add(warp, op, kTraceCopy, static_cast<u32>(moved), lines_of(sectors), 0).address = first;
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

// What a write by which CTAs synchronise has added to its word, and where warps wait for such a write.
void Trace::note_change(Warp& warp, const Op& op, u32 lanes, u32 form) {
  if (kSemanticsOf(op) == kWeak && form != kAtomicOf && !warp.yielded) return;
  const Handled& how = handled(op);
  const bool reads = form == kLoadOf;
  for (u32 left = reads || warp.yielded ? lanes : 1u << first_lane(lanes); left; left &= left - 1) {
    const int at = std::countr_zero(left);
    const u64 first = how.wide ? effective_address<u64>(warp, op, at) : effective_address<u32>(warp, op, at);
    for (u32 value = 0; value < (reads ? op.count : 1u); ++value) {
      const u64 address = first + value * how.bytes;
      const u32* word = word_at(*warp.run, address);
      if (!word) continue;
      if (warp.yielded) {
        polled_.insert(address);
      } else if (reads) {
        polled_.erase(address);
      } else if (*word != before_) {
        changes_[address] = change_ = *word - before_;
      }
    }
  }
}

bool Trace::release(Run& run) {
  if (polled_.empty() || ++releases_ > kMaxReleases) return false;
  for (const u64 address : polled_) {
    const auto known = changes_.find(address);
    if (u32* word = word_at(run, address)) *word += known != changes_.end() ? known->second : change_;
  }
  polled_.clear();
  ++run.events;
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
