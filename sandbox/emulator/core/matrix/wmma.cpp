// wmma.load and wmma.store: fragments between memory and the registers of a warp.
#include <algorithm>

#include "matrix/block.hpp"
#include "memory/access.hpp"

namespace emulator {

namespace {

constexpr u32 kRowBytes = 16;
constexpr Operand kPitch = slot("pitch", Field::kB, 4);  // elements from one line of the matrix to the next
constexpr Operand kLayout = number("layout", Field::kQ, "Fragment");
constexpr Operand kColumns = number("columns", Field::kR);    // 1 where lines are columns of the matrix
constexpr Operand kDistinct = number("distinct", Field::kS);  // registers that do not repeat others

// Which block of the matrix the registers of a fragment hold: see mma.cpp.
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
        columns_(kColumns(op)),
        address_(address),
        pitch_(static_cast<u64>(warp.lanes<u32>(kPitch(op))[first_lane(warp.live)]) * element_bytes),
        access_(access) {
    u64 size = 0;
    for (u32 i = 0; i < blocks; ++i)
      size = std::max(size, offset(position(kLayout(op), i), kBlock - 1, 0) + kBlock * element_bytes);
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
    const Space space = space_of(op_);
    return memory_at(warp_, op_, static_cast<int>(4 * line), space, address_ + away, kRowBytes, access_, poison,
                     {.together = true});
  }

  // Host memory of the whole matrix if the run has no race detection and the matrix lies in bounds; else null.
  u8* unchecked(u64 size) const {
    if (warp_.run->options.races || address_ % kRowBytes || pitch_ % kRowBytes) return nullptr;
    const bool windowed = space_of(op_) == kGeneric && address_ - kSharedWindow < kWindow;
    if (space_of(op_) == kShared || windowed) {
      Cta& cta = *warp_.cta;
      const u64 place = address_ - (windowed ? kSharedWindow : 0) - (cta.rank << kRankShift);
      return place >= kSharedBase && place <= cta.smem_end && size <= cta.smem_end - place ? cta.smem.data() + place : nullptr;
    }
    Buffer* buffer = space_of(op_) == kGlobal || space_of(op_) == kGeneric ? buffer_at(*warp_.run, address_) : nullptr;
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

// The address and the stride of a matrix must be the same in all lanes.
template <typename Address>
bool agree(Warp& warp, const Op& op, u32 mask) {
  const Address* addresses = warp.lanes<Address>(kAddressOf<Address>(op));
  const u32* pitches = warp.lanes<u32>(kPitch(op));
  const int first = first_lane(mask);
  u32 others = 0;
  for (int lane = 0; lane < kLanes; ++lane) {
    others |= static_cast<u32>(addresses[lane] != addresses[first] || pitches[lane] != pitches[first]) << lane;
  }
  if (!(others & mask)) return true;
  report(warp, op, others & mask, detector::kDivergent, addresses[first],
         "lanes differ in the address or the stride of the matrix");
  return false;
}

template <typename Address>
u64 matrix_address(Warp& warp, const Op& op, u32 mask) {
  return static_cast<Address>(warp.lanes<Address>(kAddressOf<Address>(op))[first_lane(mask)] + op.imm);
}

// The rows of B's blocks are its columns.
template <typename Address>
void load_halves(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  __m128i blocks[kBlock][kBlock];
  const u32 distinct = std::min<u32>(kDistinct(op), kBlock);
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), 2, distinct, Access::kRead);
  const bool transposed = matrix.columns() != (kLayout(op) == kRight);
  for (u32 i = 0; i < distinct; ++i) {
    for (u32 line = 0; line < kBlock; ++line) blocks[i][line] = matrix.load(position(kLayout(op), i), line, 0);
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
    for (u32 line = 0; line < kBlock; ++line) matrix.store(position(kLayout(op), i), line, 0, rows[line]);
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
        const __m128i four = matrix.load(position(kLayout(op), i), line, half * kRowBytes);
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
        matrix.store(position(kLayout(op), i), line, half * kRowBytes, load_row(reinterpret_cast<u8*>(values + 4 * half)));
      }
    }
  }
  ++warp.run->events;
}

template <typename Address>
void add_memory(Registry& registry, const std::string& width) {
  const std::vector<Operand> operands{
      list("values", 4, 2), kAddressOf<Address>, kPitch, kSpaceOf, kLayout, kColumns, kDistinct};
  registry.add("wmma.load.b16." + width, load_halves<Address>, operands);
  registry.add("wmma.load.b32." + width, load_floats<Address>, operands);
  registry.add("wmma.store.b16." + width, store_halves<Address>, operands);
  registry.add("wmma.store.b32." + width, store_floats<Address>, operands);
}

}  // namespace

void register_wmma(Registry& registry) {
  add_memory<u32>(registry, "u32");
  add_memory<u64>(registry, "u64");
}

}  // namespace emulator
