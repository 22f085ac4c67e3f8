// Accesses to memory as a trace records them: by sectors, lines and wavefronts, and as writes by which CTAs synchronise.
#include <algorithm>

#include "machine/machine.hpp"
#include "memory/access.hpp"
#include "timing/form.hpp"
#include "timing/trace.hpp"

namespace emulator {

namespace {

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

}  // namespace emulator
