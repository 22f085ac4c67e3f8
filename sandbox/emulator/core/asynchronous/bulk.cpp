// Bulk copies: tensors through tensor maps, ranges of bytes, reductions into global memory, and stores into a peer's memory.
//
// Loads tell an mbarrier how many bytes they brought; under the latest schedule they happen when nobody can go on otherwise.
// Stores belong to groups and happen when their group is waited for. To the race detector a load writes in the name of its
// mbarrier's phase, a store reads in the name of the warp's stores, from the moment they are issued.
#include <algorithm>
#include <cmath>
#include <utility>

#include "machine/machine.hpp"

namespace emulator {

namespace {

constexpr u32 kMostDimensions = 5;
constexpr u32 kMostClusterSize = 16;

// ---- what is copied ---------------------------------------------------------------------------------------------------------
enum Reduction : u32 { kStore, kAdd, kMin, kMax, kInc, kDec, kAnd, kOr, kXor };

template <typename T>
T sum(T x, T y) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<u64>(x) + static_cast<u64>(y));  // it wraps
  return static_cast<T>(x + y);
}

template <typename T>
T reduce_number(T old, T value, u32 how) {
  switch (how) {
    case kAdd:
      return sum(old, value);
    case kMin:
      return std::min(old, value);
    case kMax:
      return std::max(old, value);
    default:
      return value;
  }
}

template <typename T>
T reduce_bits(T old, T value, u32 how) {
  switch (how) {
    case kInc:
      return old >= value ? T{0} : static_cast<T>(old + 1);
    case kDec:
      return old == 0 || old > value ? value : static_cast<T>(old - 1);
    case kAnd:
      return old & value;
    case kOr:
      return old | value;
    case kXor:
      return old ^ value;
    default:
      return reduce_number(old, value, how);
  }
}

template <typename T, typename Reduce>
void reduce_each(u8* target, const u8* source, u64 bytes, Reduce&& reduce) {
  for (u64 at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
    T old, value;
    std::memcpy(&old, target + at, sizeof(T));
    std::memcpy(&value, source + at, sizeof(T));
    old = reduce(old, value);
    std::memcpy(target + at, &old, sizeof(T));
  }
}

void put(u8* target, const u8* source, u64 bytes, u32 how, u32 type) {
  if (how == kStore) {
    std::memmove(target, source, bytes);  // a copy within shared memory may overlap itself
    return;
  }
  const auto bits = [how](auto old, auto value) { return reduce_bits(old, value, how); };
  const auto number = [how](auto old, auto value) { return reduce_number(old, value, how); };
  switch (type) {
    case kTypeU8:
      return reduce_each<u8>(target, source, bytes, bits);
    case kTypeU16:
      return reduce_each<u16>(target, source, bytes, bits);
    case kTypeU32:
      return reduce_each<u32>(target, source, bytes, bits);
    case kTypeI32:
      return reduce_each<i32>(target, source, bytes, number);
    case kTypeU64:
      return reduce_each<u64>(target, source, bytes, bits);
    case kTypeI64:
      return reduce_each<i64>(target, source, bytes, number);
    case kTypeF32:
      return reduce_each<float>(target, source, bytes, number);
    case kTypeF64:
      return reduce_each<double>(target, source, bytes, number);
    case kTypeF16:
      return reduce_each<u16>(target, source, bytes, [how](u16 old, u16 value) {
        return float_to_half(reduce_number(half_to_float(old), half_to_float(value), how));
      });
    case kTypeBf16:
      return reduce_each<u16>(target, source, bytes, [how](u16 old, u16 value) {
        return float_to_bfloat(reduce_number(bfloat_to_float(old), bfloat_to_float(value), how));
      });
    default:
      return;
  }
}

// Bytes of what a reduction combines, 0 for a plain copy.
u32 combined_bytes(u32 how, u32 type) {
  constexpr u32 kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};  // by TensorType
  return how == kStore ? 0 : type < std::size(kBytes) ? kBytes[type] : 1;
}

// ---- boxes of tensors -------------------------------------------------------------------------------------------------------
// One box of a tensor map, at coordinates in elements, innermost first.
struct Box {
  const TensorMap* map = nullptr;
  i64 at[kMostDimensions] = {};

  u32 row_bytes() const { return map->box[0] * map->element_bytes; }
  u32 rows() const {
    u32 count = 1;
    for (u32 i = 1; i < map->rank; ++i) count *= map->box[i];
    return count;
  }
  u32 bytes() const { return row_bytes() * rows(); }

  // The global address of a row's first element, and the elements [begin, end) of it that lie inside the tensor.
  u64 row(u32 index, u32* begin, u32* end) const {
    u64 address = map->address;
    bool inside = true;
    for (u32 i = 1; i < map->rank; ++i) {
      const i64 place = at[i] + index % map->box[i];
      index /= map->box[i];
      inside = inside && place >= 0 && static_cast<u64>(place) < map->sizes[i];
      address += static_cast<u64>(place) * map->strides[i];
    }
    const i64 size = static_cast<i64>(map->sizes[0]), width = map->box[0];
    *begin = static_cast<u32>(std::clamp<i64>(-at[0], 0, width));
    *end = inside ? static_cast<u32>(std::clamp<i64>(size - at[0], *begin, width)) : *begin;
    return address + static_cast<u64>(at[0]) * map->element_bytes;
  }

  // Where a byte of the box lies in shared memory: the swizzle exchanges chunks of 16 bytes by bits of the address.
  u32 swizzled(u32 offset) const {
    switch (map->swizzle) {
      case 128:
        return offset ^ (offset >> 3 & 0x70);
      case 64:
        return offset ^ (offset >> 3 & 0x30);
      case 32:
        return offset ^ (offset >> 3 & 0x10);
      default:
        return offset;
    }
  }
};

// Copies between a row of a box and its place in shared memory, chunk by chunk.
template <typename Copy>
void each_chunk(const Box& box, u32 offset, u32 row, Copy&& copy) {
  const u32 bytes = box.row_bytes(), start = offset + row * bytes;
  for (u32 done = 0; done < bytes;) {
    const u32 at = start + done, step = std::min(16 - at % 16, bytes - done);
    copy(done, box.swizzled(at), step);
    done += step;
  }
}

// The map that a kernel's address leads to; null after a report.
const TensorMap* map_at(Warp& warp, const Op& op, int lane, u64 address) {
  u64 words[2];
  bool poison = false;
  const u8* memory = memory_at(warp, op, lane, kGeneric, address, 16, Access::kRead, &poison);
  if (!memory) return nullptr;
  std::memcpy(words, memory, sizeof words);
  if (words[0] != kTensorMapMagic || words[1] >= warp.run->maps.size() || address % 64) {
    report(warp, op, 1u << lane, "tensor-map", address, "there is no tensor map at this address");
    return nullptr;
  }
  return &warp.run->maps[words[1]];
}

// Why the hardware would not do it right. No document says so, but an H200 ends a kernel with an illegal instruction where a
// box does not start on 16 bytes, or where a store starts outside the tensor; and it stores rows in whole pieces of 16 bytes,
// past their end. Source: tests/sandbox/emulator/golden.
std::string refusal(const Box& box, bool stores) {
  const TensorMap& map = *box.map;
  if (box.at[0] * map.element_bytes % 16) {
    return "the first coordinate is " + std::to_string(box.at[0]) +
           ", so that the box does not start on 16 bytes of global memory";
  }
  if (!stores) return "";
  for (u32 i = 0; i < map.rank; ++i) {
    if (box.at[i] < 0) return "a store starts at coordinate " + std::to_string(box.at[i]) + ", outside the tensor";
  }
  const u64 size = map.sizes[0], bytes = size * map.element_bytes;
  if (bytes % 16 && static_cast<u64>(box.at[0]) + map.box[0] > size) {
    return "a store past the end of rows of " + std::to_string(bytes) + " bytes, no multiple of 16: it writes behind them";
  }
  return "";
}

bool find_box(Warp& warp, const Op& op, int lane, Box* box, bool stores) {
  box->map = map_at(warp, op, lane, warp.lanes<u64>(op.b)[lane] + static_cast<u64>(op.imm));
  if (!box->map) return false;
  if (box->map->rank != op.count) {
    report(warp, op, 1u << lane, "tensor-map", 0,
           std::to_string(op.count) + " coordinates for a tensor of " + std::to_string(box->map->rank) + " dimensions");
    return false;
  }
  for (u32 i = 0; i < op.count; ++i) box->at[i] = warp.lanes<i32>(warp.run->program.lists[op.list + i])[lane];
  if (box->map->swizzle && box->row_bytes() != box->map->swizzle) {
    report(warp, op, 1u << lane, "unsupported", 0, "a box whose rows are shorter than its swizzle");
    warp.run->stopped = true;
    return false;
  }
  const std::string broken = refusal(*box, stores);
  if (broken.empty()) return true;
  report(warp, op, 1u << lane, "tensor-map", 0, broken);
  return false;
}

bool aligned(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, const char* what) {
  if (address % bytes == 0) return true;
  report(warp, op, 1u << lane, "misaligned", address,
         std::string(what) + " in shared memory must lie on " + std::to_string(bytes) + " bytes");
  return false;
}

u32 shared_address(Warp& warp, u32 slot, u32 bytes, int lane) {
  const u64 address = lane_address(warp, slot, bytes, lane);
  return static_cast<u32>(bytes == 8 && address - kSharedWindow < kWindow ? address - kSharedWindow : address);
}

// ---- loads ------------------------------------------------------------------------------------------------------------------
// Where a load goes: one CTA, or several at the same offsets.
struct Target {
  Cta* cta;
  u8* smem;
  u32 offset;
  MBarrier* barrier;
  u64 phase;
};

// Finds the targets of a load of `bytes` bytes and notes the writes. p, q: bytes of the addresses in a and c.
std::vector<Target> targets_of(Warp& warp, const Op& op, int lane, u32 bytes) {
  std::vector<Target> targets;
  const u32 address = shared_address(warp, op.a, op.p, lane), barrier_address = shared_address(warp, op.c, op.q, lane);
  const u32 own = address >> kRankShift;
  if (!op.e && own >= kMostClusterSize) {
    shared_range(warp, op, lane, address, bytes, Access::kWrite, nullptr, {});  // says that there is none
    return targets;
  }
  const u32 ranks = op.e ? warp.lanes<u16>(op.e)[lane] : 1u << own;
  for (u32 rank = 0; rank < kMostClusterSize; ++rank) {
    if (!(ranks >> rank & 1)) continue;
    const u32 there = (address & kOffsetMask) | rank << kRankShift;
    const u32 at = op.e ? (barrier_address & kOffsetMask) | rank << kRankShift : barrier_address;
    MBarrier* barrier = mbarrier_at(warp, op, lane, at, true);
    if (!barrier) continue;
    Touch touch;
    touch.async = true;
    touch.epoch = {barrier->component, static_cast<u32>(barrier->phase) + 1};
    u8* smem = shared_range(warp, op, lane, there, bytes, Access::kWrite, nullptr, touch);
    if (!smem) continue;
    const u32 offset = there & kOffsetMask;
    targets.push_back({cta_of(warp, there), smem - offset, offset, barrier, barrier->phase});
  }
  return targets;
}

struct Load : Pending {
  Load(Warp& warp, const Op& op, int lane, std::vector<Target> targets)
      : Pending(warp.cta->cluster), warp(warp), op(op), lane(lane), targets(std::move(targets)) {}

  virtual u32 bytes() const = 0;
  virtual void deliver(const Target& target) = 0;

  void complete() override {
    for (const Target& target : targets) {
      deliver(target);
      if (target.barrier->phase != target.phase) {
        report(
            warp, op, 1u << lane, "transaction-mismatch", 0,
            "the mbarrier's phase was over before these " + std::to_string(bytes()) + " bytes arrived: too few were announced",
            target.barrier->instruction);
      }
      target.barrier->transactions -= bytes();
      settle_phase(*warp.run, *target.barrier);
    }
  }

  Warp& warp;
  const Op& op;
  int lane;
  std::vector<Target> targets;
};

struct TensorLoad : Load {
  using Load::Load;
  Box box;

  u32 bytes() const override { return box.bytes(); }

  void deliver(const Target& target) override {
    const u32 rows = box.rows(), width = box.row_bytes(), size = box.map->element_bytes;
    std::vector<u8> line(width);
    const Buffer* buffer = buffer_at(*warp.run, box.map->address);
    for (u32 row = 0; row < rows; ++row) {
      u32 begin = 0, end = 0;
      const u64 address = box.row(row, &begin, &end);
      std::fill(line.begin(), line.end(), box.map->nan_fill ? 0xFF : 0);
      if (begin < end && buffer) {
        const u64 from = address + static_cast<u64>(begin) * size - buffer->base, count = static_cast<u64>(end - begin) * size;
        if (from <= buffer->size && count <= buffer->size - from)
          std::memcpy(line.data() + begin * size, buffer->host + from, count);
      }
      each_chunk(box, target.offset, row,
                 [&](u32 done, u32 at, u32 step) { std::memcpy(target.smem + at, line.data() + done, step); });
      if (warp.run->options.taint) [[unlikely]] {
        std::fill(line.begin(), line.end(), 0);
        if (begin < end && buffer && buffer->taint) {
          const u64 from = address + static_cast<u64>(begin) * size - buffer->base,
                    count = static_cast<u64>(end - begin) * size;
          buffer->taint->read(from, count, line.data() + begin * size);
        }
        each_chunk(box, target.offset, row,
                   [&](u32 done, u32 at, u32 step) { std::memcpy(target.cta->taint.data() + at, line.data() + done, step); });
      }
    }
  }
};

struct RangeLoad : Load {
  using Load::Load;
  const u8* source = nullptr;
  const Cta* from = nullptr;  // whose shared memory the source is; null: global memory
  u32 size = 0, how = kStore, type = kTypeU8;

  u32 bytes() const override { return size; }
  void deliver(const Target& target) override {
    if (from && !from->live_warps) {
      report(warp, op, 1u << lane, "cluster-exit", 0,
             "a bulk copy reads shared memory of CTA rank " + std::to_string(from->rank) + ", which has ended");
    }
    u8* to = target.smem + target.offset;
    if (warp.run->options.taint) [[unlikely]] {
      move_taint(*warp.run, *cluster, to, source, size, combined_bytes(how, type), op.instruction);
    }
    put(to, source, size, how, type);
  }
};

// Reads of a tensor in global memory: only memory that the kernel may write has an order to keep.
void touch_rows(Warp& warp, const Op& op, int lane, const Box& box, Access access) {
  const Buffer* buffer = buffer_at(*warp.run, box.map->address);
  if (!buffer) {
    report(warp, op, 1u << lane, "global-out-of-bounds", box.map->address, "a tensor map over memory that is not there");
    return;
  }
  const bool ordered = warp.run->options.races && buffer->shadow;
  const bool dependent = running(warp) & kRunningOthers;
  if (!ordered && !dependent && (access == Access::kRead || buffer->writable)) return;
  for (u32 row = 0; row < box.rows(); ++row) {
    u32 begin = 0, end = 0;
    const u64 address = box.row(row, &begin, &end);
    if (begin == end) continue;
    const u32 size = box.map->element_bytes;
    Touch touch;
    touch.async = true;
    if (!global_at(warp, op, lane, address + static_cast<u64>(begin) * size, (end - begin) * size, access, nullptr, touch))
      return;
    if (!ordered) return;
  }
}

// a: target (p: bytes of its address), b: map (imm: offset), list: coordinates, c: mbarrier (q: bytes of its address),
// e: mask of CTAs (0: the target's)
void tensor_load(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    Box box;
    if (!find_box(warp, op, lane, &box, false)) continue;
    if (!aligned(warp, op, lane, shared_address(warp, op.a, op.p, lane), 128, "the target of a tensor copy")) continue;
    touch_rows(warp, op, lane, box, Access::kRead);
    auto load = std::make_shared<TensorLoad>(warp, op, lane, targets_of(warp, op, lane, box.bytes()));
    load->box = box;
    warp.run->enqueue(std::move(load));
  }
  ++warp.run->events;
}

// a: target, c: mbarrier, e: mask, as above; b: global source (imm: offset), d: bytes; r: bytes of the source's address where
// that is in shared memory; s: the reduction, and from bit 8 on the type of what is reduced
void range_load(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 bytes = warp.lanes<u32>(op.d)[lane];
    if (bytes % 16 || !aligned(warp, op, lane, shared_address(warp, op.a, op.p, lane), 16, "the target of a bulk copy")) {
      report(warp, op, 1u << lane, "misaligned", 0, "a bulk copy of " + std::to_string(bytes) + " bytes, no multiple of 16");
      continue;
    }
    if (!bytes) continue;
    bool poison = false;
    const u8* source = nullptr;
    if (op.r) {
      Touch touch;
      touch.async = true;
      source = shared_range(warp, op, lane, shared_address(warp, op.b, op.r, lane) + static_cast<u32>(op.imm), bytes,
                            Access::kRead, &poison, touch);
    } else {
      const u64 address = warp.lanes<u64>(op.b)[lane] + static_cast<u64>(op.imm);
      if (address % 16) {
        report(warp, op, 1u << lane, "misaligned", address, "the source of a bulk copy must lie on 16 bytes");
        continue;
      }
      Touch touch;
      touch.async = true;
      source = global_at(warp, op, lane, address, bytes, Access::kRead, &poison, touch);
    }
    if (!source) continue;
    auto load = std::make_shared<RangeLoad>(warp, op, lane, targets_of(warp, op, lane, bytes));
    load->source = source;
    if (op.r) load->from = cta_of(warp, shared_address(warp, op.b, op.r, lane) + static_cast<u32>(op.imm));
    load->size = bytes;
    load->how = op.s & 0xFF;
    load->type = op.s >> 8;
    warp.run->enqueue(std::move(load));
  }
  ++warp.run->events;
}

// ---- stores -----------------------------------------------------------------------------------------------------------------
struct TensorStore : Pending {
  using Pending::Pending;
  Run* run = nullptr;
  Box box;
  const u8* smem = nullptr;
  u32 offset = 0, how = kStore, instruction = 0;

  void complete() override {
    Buffer* buffer = buffer_at(*run, box.map->address);
    if (!buffer || !buffer->writable) return;
    const u32 rows = box.rows(), size = box.map->element_bytes;
    std::vector<u8> line(box.row_bytes());
    for (u32 row = 0; row < rows; ++row) {
      u32 begin = 0, end = 0;
      const u64 address = box.row(row, &begin, &end);
      if (begin == end) continue;
      each_chunk(box, offset, row, [&](u32 done, u32 at, u32 step) { std::memcpy(line.data() + done, smem + at, step); });
      const u64 to = address + static_cast<u64>(begin) * size - buffer->base, count = static_cast<u64>(end - begin) * size;
      if (to > buffer->size || count > buffer->size - to) continue;
      put(buffer->host + to, line.data() + begin * size, count, how, box.map->type);
      if (run->options.taint) [[unlikely]] {
        each_chunk(box, offset, row,
                   [&](u32 done, u32 at, u32 step) { read_taint(*run, *cluster, smem + at, step, line.data() + done); });
        write_taint(*run, *cluster, buffer->host + to, count, line.data() + begin * size, combined_bytes(how, box.map->type),
                    instruction);
      }
    }
  }
};

struct RangeStore : Pending {
  using Pending::Pending;
  u8* target = nullptr;
  const u8* source = nullptr;
  Run* run = nullptr;
  u32 bytes = 0, how = kStore, type = kTypeU8, instruction = 0;

  void complete() override {
    if (run->options.taint) [[unlikely]] {
      move_taint(*run, *cluster, target, source, bytes, combined_bytes(how, type), instruction);
    }
    put(target, source, bytes, how, type);
  }
};

// Notes that shared memory is read until the store's group has been waited for.
const u8* source_of(Warp& warp, const Op& op, int lane, u32 address, u32 bytes) {
  Touch touch;
  touch.async = true;
  touch.epoch = {warp.stores(), warp.store_number + 1};
  return shared_range(warp, op, lane, address, bytes, Access::kRead, nullptr, touch);
}

void keep(Warp& warp, const Op& op, int lane, std::shared_ptr<Pending> store) {
  warp.open_stores.push_back({static_cast<u32>(lane), &op, store});
  count_issued(warp);
  warp.run->enqueue(std::move(store));
}

// a: source (p: bytes of its address), b: map (imm: offset), list: coordinates, r: reduction
void tensor_store(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    auto store = std::make_shared<TensorStore>(warp.cta->cluster);
    if (!find_box(warp, op, lane, &store->box, true)) continue;
    const u32 address = shared_address(warp, op.a, op.p, lane);
    if (!aligned(warp, op, lane, address, 128, "the source of a tensor copy")) continue;
    const u8* smem = source_of(warp, op, lane, address, store->box.bytes());
    if (!smem) continue;
    touch_rows(warp, op, lane, store->box, Access::kWrite);
    store->run = warp.run;
    store->offset = address & kOffsetMask;
    store->smem = smem - store->offset;
    store->how = op.r;
    store->instruction = op.instruction;
    keep(warp, op, lane, std::move(store));
  }
  ++warp.run->events;
}

// a: source (p: bytes of its address), b: global target (imm: offset), d: bytes, r: reduction, s: type
void range_store(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    const u32 bytes = warp.lanes<u32>(op.d)[lane], address = shared_address(warp, op.a, op.p, lane);
    const u64 target = warp.lanes<u64>(op.b)[lane] + static_cast<u64>(op.imm);
    if (bytes % 16 || address % 16 || target % 16) {
      report(warp, op, 1u << lane, "misaligned", target, "a bulk copy's addresses and size must be multiples of 16 bytes");
      continue;
    }
    if (!bytes) continue;
    auto store = std::make_shared<RangeStore>(warp.cta->cluster);
    store->source = source_of(warp, op, lane, address, bytes);
    Touch touch;
    touch.async = true;
    touch.strong = op.r != kStore;
    store->target = global_at(warp, op, lane, target, bytes, Access::kWrite, nullptr, touch);
    if (!store->source || !store->target) continue;
    store->bytes = bytes;
    store->how = op.r;
    store->type = op.s;
    store->run = warp.run;
    store->instruction = op.instruction;
    keep(warp, op, lane, std::move(store));
  }
  ++warp.run->events;
}

void commit(Warp& warp, const Op&, u32 mask) {
  StoreGroup group;
  group.lanes = mask;
  group.number = ++warp.store_number;
  const auto others = [mask](const BulkStore& store) { return !(mask >> store.lane & 1); };
  const auto first = std::stable_partition(warp.open_stores.begin(), warp.open_stores.end(), others);
  group.stores.assign(first, warp.open_stores.end());
  warp.open_stores.erase(first, warp.open_stores.end());
  warp.store_groups.push_back(std::move(group));
  count_issued(warp);
}

void complete(const std::vector<BulkStore>& stores) {
  for (const BulkStore& store : stores) {
    if (std::exchange(store.work->done, true)) continue;
    store.work->complete();
  }
}

void report_unawaited(Warp& warp, const std::vector<BulkStore>& stores) {
  if (!warp.run->options.races) return;
  for (const BulkStore& store : stores) {
    report(warp, *store.op, 1u << store.lane, "async-race", 0,
           "the thread ends while this bulk store reads shared memory, which goes when the CTA ends: no "
           "cp.async.bulk.wait_group waits for it");
  }
}

// imm: groups of the lanes that wait which may stay incomplete. A store that has read its source has also written its target
// here.
void wait(Warp& warp, const Op& op, u32 mask) {
  u64 kept = 0;
  for (std::size_t i = warp.store_groups.size(); i-- > 0;) {
    StoreGroup& group = warp.store_groups[i];
    if (group.lanes & mask) group.done |= kept++ >= static_cast<u64>(std::max<i64>(op.imm, 0));
  }
  for (const StoreGroup& group : warp.store_groups) {
    if (group.done) complete(group.stores);
  }
  while (!warp.store_groups.empty() && warp.store_groups.front().done) {
    warp.hear(warp.stores(), warp.store_groups.front().number);
    warp.store_groups.pop_front();
  }
}

// ---- stores into a peer's shared memory -------------------------------------------------------------------------------------
struct RemoteStore : Pending {
  using Pending::Pending;
  Run* run = nullptr;
  u8* target = nullptr;
  MBarrier* barrier = nullptr;
  u8 data[16], taint[16];
  u32 bytes = 0;

  void complete() override {
    std::memcpy(target, data, bytes);
    if (run->options.taint) [[unlikely]]
      write_taint(*run, *cluster, target, bytes, taint, 0, kNoInstruction);
    barrier->transactions -= bytes;
    settle_phase(*run, *barrier);
  }
};

// a: target (p: bytes of its address, imm: offset), c: mbarrier (q: bytes of its address), list: values of r bytes each
void remote_store(Warp& warp, const Op& op, u32 mask) {
  for (u32 left = mask; left; left &= left - 1) {
    const int lane = std::countr_zero(left);
    MBarrier* barrier = mbarrier_at(warp, op, lane, shared_address(warp, op.c, op.q, lane), true);
    if (!barrier) continue;
    auto store = std::make_shared<RemoteStore>(warp.cta->cluster);
    store->bytes = op.count * op.r;
    if (store->bytes > sizeof store->data) continue;
    Touch touch;
    touch.async = true;
    touch.epoch = {barrier->component, static_cast<u32>(barrier->phase) + 1};
    const u32 address = shared_address(warp, op.a, op.p, lane) + static_cast<u32>(op.imm);
    store->target = shared_at(warp, op, lane, address, store->bytes, Access::kWrite, nullptr, touch);
    if (!store->target) continue;
    for (u32 i = 0; i < op.count; ++i) {
      const u8* value = warp.registers + warp.run->program.lists[op.list + i] + static_cast<u32>(lane) * op.r;
      std::memcpy(store->data + i * op.r, value, op.r);
      if (warp.run->options.taint) [[unlikely]]
        std::memcpy(store->taint + i * op.r, value + warp.run->shadow_offset, op.r);
    }
    store->run = warp.run;
    store->barrier = barrier;
    warp.run->enqueue(std::move(store));
  }
  ++warp.run->events;
}

}  // namespace

// A thread that has ended waits for nothing any more, and shared memory goes with its CTA. Whoever has waited for a group has
// ended the reads of its stores at the least.
void finish_stores(Warp& warp) {
  for (const StoreGroup& group : warp.store_groups) {
    if (!group.done) report_unawaited(warp, group.stores);
    complete(group.stores);
  }
  warp.store_groups.clear();
  report_unawaited(warp, warp.open_stores);
  complete(warp.open_stores);
  warp.open_stores.clear();
}

void register_bulk(Registry& to) {
  to.add("cp.async.bulk.tensor.load", tensor_load, {.a = 8, .b = 8, .c = 8, .e = 2, .list = 4, .least = 1});
  to.add("cp.async.bulk.tensor.store", tensor_store, {.a = 8, .b = 8, .list = 4, .least = 1});
  to.add("cp.async.bulk.load", range_load, {.d = 4, .a = 8, .b = 8, .c = 8, .e = 2});
  to.add("cp.async.bulk.store", range_store, {.d = 4, .a = 8, .b = 8});
  to.add("cp.async.bulk.commit", commit, {});
  to.add("cp.async.bulk.wait", wait, {});
  to.add("st.async", remote_store, {.a = 8, .c = 8, .list = 8, .least = 1},
         [](const OpRecord& op) { return (op.r == 4 || op.r == 8) && op.count <= 4; });
}

}  // namespace emulator
