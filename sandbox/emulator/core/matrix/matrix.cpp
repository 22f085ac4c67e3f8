// ldmatrix, stmatrix and movmatrix: matrices of 8x8 elements between shared memory and the registers of a warp.
#include <algorithm>

#include "matrix/block.hpp"
#include "memory/access.hpp"

namespace emulator {

namespace {

constexpr u32 kRowBytes = 16;
constexpr Operand kTransposedTo = slot("result", Field::kD, 4), kTransposed = slot("value", Field::kA, 4);

// Addresses of the rows of up to four matrices: lane 8*i + r has that of row r of matrix i.
template <typename Address>
struct Rows {
  Rows(Warp& warp, const Op& op) : warp(warp), op(op), count(static_cast<int>(std::min(op.count, 4u))) {
    const Address* bases = warp.lanes<Address>(kAddressOf<Address>(op));
    for (int lane = 0; lane < kLanes; ++lane) addresses[lane] = bases[lane] + static_cast<Address>(op.imm);
  }

  // The CTA's shared memory if every row lies in it and the run has no race detection, so that no check is needed. The rows'
  // offsets are then in `offsets`. Otherwise null.
  u8* unchecked() {
    Cta& cta = *warp.cta;
    if (warp.run->options.races || cta.smem_end < kSharedBase + kRowBytes) return nullptr;
    if (space_of(op) == kGeneric && sizeof(Address) < sizeof kSharedWindow) return nullptr;
    const Address window = (space_of(op) == kGeneric ? static_cast<Address>(kSharedWindow) : 0) + (cta.rank << kRankShift);
    const Address most = cta.smem_end - kRowBytes - kSharedBase;
    Address wrong = 0;
    for (int lane = 0; lane < kBlock * count; ++lane) {
      const Address offset = addresses[lane] - window;
      wrong |= (offset & (kRowBytes - 1)) | (offset - kSharedBase > most);
      offsets[lane] = static_cast<u32>(offset);
    }
    return wrong ? nullptr : cta.smem.data();
  }

  u8* checked(int lane, Access access, bool* poison) {
    u64 address = addresses[lane];
    if (space_of(op) == kGeneric) {
      if (address - kSharedWindow >= kWindow) {
        report(warp, op, 1u << lane, detector::kSharedOutOfBounds, address, "a generic address that is not in shared memory");
        return nullptr;
      }
      address -= kSharedWindow;
    }
    return shared_at(warp, op, lane, static_cast<u32>(address), kRowBytes, access, poison, {.together = true});
  }

  Warp& warp;
  const Op& op;
  int count;
  Address addresses[kLanes];
  u32 offsets[kLanes];
};

// The address may lie in a register of the result. Lanes that have exited have no row.
template <typename Address, bool kTransposed>
void load_matrices(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  Rows<Address> addresses(warp, op);
  const u8* smem = mask == kAllLanes ? addresses.unchecked() : nullptr;
  for (int i = 0; i < addresses.count; ++i) {
    __m128i rows[kBlock];
    for (int r = 0; r < kBlock; ++r) {
      const int lane = kBlock * i + r;
      bool poison = false;
      const u8* row = smem               ? smem + addresses.offsets[lane]
                      : mask >> lane & 1 ? addresses.checked(lane, Access::kRead, &poison)
                                         : nullptr;
      rows[r] = load_row(row && !poison ? row : warp.run->poison_bytes);
    }
    if constexpr (kTransposed) transpose(rows);
    store_block(warp.registers + slots[i], rows);
  }
}

template <typename Address, bool kTransposed>
void store_matrices(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  Rows<Address> addresses(warp, op);
  u8* smem = mask == kAllLanes ? addresses.unchecked() : nullptr;
  for (int i = 0; i < addresses.count; ++i) {
    __m128i rows[kBlock];
    load_block(warp.registers + slots[i], rows);
    if constexpr (kTransposed) transpose(rows);
    for (int r = 0; r < kBlock; ++r) {
      const int lane = kBlock * i + r;
      u8* row = smem               ? smem + addresses.offsets[lane]
                : mask >> lane & 1 ? addresses.checked(lane, Access::kWrite, nullptr)
                                   : nullptr;
      if (row) store_row(row, rows[r]);
    }
  }
  ++warp.run->events;
}

void move_matrix(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask)) return;
  __m128i rows[kBlock];
  load_block(warp.registers + kTransposed(op), rows);
  transpose(rows);
  store_block(warp.registers + kTransposedTo(op), rows);
}

// Handlers by the width of their address.
template <typename Address>
void add_memory(Registry& registry, const std::string& width) {
  const std::vector<Operand> operands{list("values", 4), kAddressOf<Address>, kSpaceOf};
  registry.add("ldmatrix." + width, load_matrices<Address, false>, operands);
  registry.add("ldmatrix.trans." + width, load_matrices<Address, true>, operands);
  registry.add("stmatrix." + width, store_matrices<Address, false>, operands);
  registry.add("stmatrix.trans." + width, store_matrices<Address, true>, operands);
}

}  // namespace

void register_matrix(Registry& registry) {
  add_memory<u32>(registry, "u32");
  add_memory<u64>(registry, "u64");
  registry.add("movmatrix.trans", move_matrix, {kTransposedTo, kTransposed});
}

}  // namespace emulator
