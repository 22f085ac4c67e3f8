// ldmatrix, stmatrix and movmatrix, and wmma.load and wmma.store: fragments between memory and the registers of a warp.
#include <algorithm>

#include "machine/machine.hpp"
#include "matrix/block.hpp"

namespace emulator {

namespace {

constexpr u32 kRowBytes = 16;

const u32* listed(Warp& warp, const Op& op) { return warp.run->program.lists.data() + op.list; }

// ---- ldmatrix, stmatrix, movmatrix ------------------------------------------------------------------------------------------
// Addresses of the rows of up to four matrices: lane 8*i + r has that of row r of matrix i.
template <typename Address>
struct Rows {
  Rows(Warp& warp, const Op& op) : warp(warp), op(op), count(static_cast<int>(std::min(op.count, 4u))) {
    const Address* bases = warp.lanes<Address>(op.a);
    for (int lane = 0; lane < kLanes; ++lane) addresses[lane] = bases[lane] + static_cast<Address>(op.imm);
  }

  // The CTA's shared memory where every row lies in it and nobody looks for races, so that there is nothing to check or note;
  // the rows' offsets in it are then in `offsets`. Otherwise null.
  u8* unchecked() {
    Cta& cta = *warp.cta;
    if (warp.run->options.races || cta.smem_end < kSharedBase + kRowBytes) return nullptr;
    if (op.p == kGeneric && sizeof(Address) < sizeof kSharedWindow) return nullptr;
    const Address window = (op.p == kGeneric ? static_cast<Address>(kSharedWindow) : 0) + (cta.rank << kRankShift);
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
    if (op.p == kGeneric) {
      if (address - kSharedWindow >= kWindow) {
        report(warp, op, 1u << lane, "shared-out-of-bounds", address, "a generic address that is not in shared memory");
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
  load_block(warp.registers + op.a, rows);
  transpose(rows);
  store_block(warp.registers + op.d, rows);
}

// ---- wmma -------------------------------------------------------------------------------------------------------------------
// Which block of the matrix the registers of a fragment hold: see mma.cpp.
enum Fragment : u32 { kLeft, kRight, kSquare, kTall };  // A, B, accumulators of m16n16k16, of m32n8k16
struct Position {
  u32 row, column;
};

Position position(u32 fragment, u32 index) {
  switch (fragment) {
    case kLeft:
      return {(index & 1) + 2 * (index >> 2), index >> 1 & 1};
    case kRight:
      return {index & 1, index >> 1};
    case kSquare:
      return {index & 1, index >> 1};
    default:
      return {index, 0};
  }
}

// The lines of a matrix in memory, and the blocks of a fragment in it. `columns`: lines are columns of the matrix.
class Matrix {
 public:
  Matrix(Warp& warp, const Op& op, u64 address, u32 element_bytes, u32 blocks, Access access)
      : warp_(warp),
        op_(op),
        element_bytes_(element_bytes),
        columns_(op.r),
        address_(address),
        pitch_(static_cast<u64>(warp.lanes<u32>(op.b)[first_lane(warp.live)]) * element_bytes),
        access_(access) {
    u64 size = 0;
    for (u32 i = 0; i < blocks; ++i) size = std::max(size, offset(position(op.q, i), kBlock - 1, 0) + kBlock * element_bytes);
    host_ = unchecked(size);
  }

  bool columns() const { return columns_; }

  // 16 bytes of line `line` of a block, from byte `from` of it.
  __m128i load(Position block, u32 line, u32 from) const {
    bool poison = false;
    const u8* bytes = at(block, line, from, &poison);
    return load_row(bytes && !poison ? bytes : warp_.run->poison_bytes);
  }

  void store(Position block, u32 line, u32 from, __m128i bytes) const {
    if (u8* memory = at(block, line, from, nullptr)) store_row(memory, bytes);
  }

 private:
  u64 offset(Position block, u32 line, u32 from) const {
    const u32 across = columns_ ? block.column : block.row, along = columns_ ? block.row : block.column;
    return (u64{across} * kBlock + line) * pitch_ + u64{along} * kBlock * element_bytes_ + from;
  }

  // A lane of the hardware touches a part of the line only.
  u8* at(Position block, u32 line, u32 from, bool* poison) const {
    const u64 away = offset(block, line, from);
    if (host_) return host_ + away;
    const Space space = static_cast<Space>(op_.p);
    return memory_at(warp_, op_, static_cast<int>(4 * line), space, address_ + away, kRowBytes, access_, poison,
                     {.together = true});
  }

  // Host memory of the whole matrix where nobody looks for races and nothing else is wrong with it; else null.
  u8* unchecked(u64 size) const {
    if (warp_.run->options.races || address_ % kRowBytes || pitch_ % kRowBytes) return nullptr;
    const bool windowed = op_.p == kGeneric && address_ - kSharedWindow < kWindow;
    if (op_.p == kShared || windowed) {
      Cta& cta = *warp_.cta;
      const u64 place = address_ - (windowed ? kSharedWindow : 0) - (cta.rank << kRankShift);
      return place >= kSharedBase && place <= cta.smem_end && size <= cta.smem_end - place ? cta.smem.data() + place : nullptr;
    }
    Buffer* buffer = op_.p == kGlobal || op_.p == kGeneric ? buffer_at(*warp_.run, address_) : nullptr;
    if (!buffer || (access_ == Access::kWrite && !buffer->writable)) return nullptr;
    const u64 place = address_ - buffer->base;
    return size <= buffer->size - place ? buffer->host + place : nullptr;
  }

  Warp& warp_;
  const Op& op_;
  u32 element_bytes_;
  bool columns_;
  u64 address_, pitch_;
  Access access_;
  u8* host_;
};

// The lanes must agree on where the matrix is.
template <typename Address>
bool agree(Warp& warp, const Op& op, u32 mask) {
  const Address* addresses = warp.lanes<Address>(op.a);
  const u32* pitches = warp.lanes<u32>(op.b);
  const int first = first_lane(mask);
  u32 others = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    others |= static_cast<u32>(addresses[lane] != addresses[first] || pitches[lane] != pitches[first]) << lane;
  }
  if (!(others & mask)) return true;
  report(warp, op, others & mask, "divergent", addresses[first], "lanes differ in the address or the stride of the matrix");
  return false;
}

template <typename Address>
u64 matrix_address(Warp& warp, const Op& op, u32 mask) {
  return static_cast<Address>(warp.lanes<Address>(op.a)[first_lane(mask)] + op.imm);
}

// q: Fragment, r: lines are columns, s: registers that do not repeat others. The rows of B's blocks are its columns.
template <typename Address>
void load_halves(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  __m128i blocks[kBlock][kBlock];
  const u32 distinct = std::min<u32>(op.s, kBlock);
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), 2, distinct, Access::kRead);
  const bool transposed = matrix.columns() != (op.q == kRight);
  for (u32 i = 0; i < distinct; ++i) {
    for (u32 line = 0; line < kBlock; ++line) blocks[i][line] = matrix.load(position(op.q, i), line, 0);
    if (transposed) transpose(blocks[i]);
  }
  for (u32 i = 0; i < op.count && distinct; ++i) store_block(warp.registers + slots[i], blocks[i % distinct]);
}

template <typename Address>
void store_halves(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), 2, op.count, Access::kWrite);
  for (u32 i = 0; i < op.count; ++i) {
    __m128i rows[kBlock];
    load_block(warp.registers + slots[i], rows);
    if (matrix.columns()) transpose(rows);
    for (u32 line = 0; line < kBlock; ++line) matrix.store(position(op.q, i), line, 0, rows[line]);
  }
  ++warp.run->events;
}

// Element (row, column) of an f32 block: in the register of its column's parity.
float& element(u8* even, u8* odd, u32 row, u32 column) {
  return reinterpret_cast<float*>(column & 1 ? odd : even)[4 * row + column / 2];
}

template <typename Address>
void load_floats(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  alignas(16) float values[kBlock][kBlock][kBlock];  // block, line, element: read whole, for a register may hold the address
  const u32 blocks = std::min<u32>(op.count / 2, kBlock);
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), 4, blocks, Access::kRead);
  for (u32 i = 0; i < blocks; ++i) {
    for (u32 line = 0; line < kBlock; ++line) {
      for (u32 half = 0; half < 2; ++half) {
        const __m128i four = matrix.load(position(op.q, i), line, half * kRowBytes);
        store_row(reinterpret_cast<u8*>(values[i][line] + 4 * half), four);
      }
    }
  }
  for (u32 i = 0; i < blocks; ++i) {
    u8 *even = warp.registers + slots[2 * i], *odd = warp.registers + slots[2 * i + 1];
    for (u32 row = 0; row < kBlock; ++row) {
      for (u32 column = 0; column < kBlock; ++column) {
        element(even, odd, row, column) = matrix.columns() ? values[i][column][row] : values[i][row][column];
      }
    }
  }
}

template <typename Address>
void store_floats(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), 4, op.count / 2, Access::kWrite);
  for (u32 i = 0; i < op.count / 2; ++i) {
    u8 *even = warp.registers + slots[2 * i], *odd = warp.registers + slots[2 * i + 1];
    for (u32 line = 0; line < kBlock; ++line) {
      alignas(16) float values[kBlock];
      for (u32 along = 0; along < kBlock; ++along) {
        values[along] = matrix.columns() ? element(even, odd, along, line) : element(even, odd, line, along);
      }
      for (u32 half = 0; half < 2; ++half) {
        matrix.store(position(op.q, i), line, half * kRowBytes, load_row(reinterpret_cast<u8*>(values + 4 * half)));
      }
    }
  }
  ++warp.run->events;
}

// Handlers by the width of their address.
template <typename Address>
void add_memory(Registry& registry, const std::string& width) {
  constexpr u8 kAddress = sizeof(Address);
  const Signature matrices{.a = kAddress, .list = 4, .least = 1}, fragment{.a = kAddress, .b = 4, .list = 4, .least = 2};
  registry.add("ldmatrix." + width, load_matrices<Address, false>, matrices);
  registry.add("ldmatrix.trans." + width, load_matrices<Address, true>, matrices);
  registry.add("stmatrix." + width, store_matrices<Address, false>, matrices);
  registry.add("stmatrix.trans." + width, store_matrices<Address, true>, matrices);
  registry.add("wmma.load.b16." + width, load_halves<Address>, fragment);
  registry.add("wmma.load.b32." + width, load_floats<Address>, fragment);
  registry.add("wmma.store.b16." + width, store_halves<Address>, fragment);
  registry.add("wmma.store.b32." + width, store_floats<Address>, fragment);
}

}  // namespace

void register_matrix(Registry& registry) {
  add_memory<u32>(registry, "u32");
  add_memory<u64>(registry, "u64");
  registry.add("movmatrix.trans", move_matrix, {.d = 4, .a = 4});
}

}  // namespace emulator
