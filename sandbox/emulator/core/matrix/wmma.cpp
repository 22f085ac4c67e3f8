// wmma.load and wmma.store: fragments between memory and the registers of a warp.
#include <algorithm>
#include <cstring>

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
    case kFlat:
      return {0, index};
    default:
      return {index, 0};
  }
}

// Rows and columns of a block. Those of A and B have a register's elements along k; a block of B has eight columns.
struct Extent {
  u32 rows, columns;
};

constexpr u32 depth_of(u32 element_bytes) { return element_bytes == 8 ? 4 : kRowBytes / element_bytes; }
bool is_right(u32 fragment) { return fragment == kRight || fragment == kFlat; }

Extent operand_block(u32 fragment, u32 element_bytes) {
  const u32 depth = depth_of(element_bytes);
  return is_right(fragment) ? Extent{depth, kBlock} : Extent{kBlock, depth};
}
constexpr Extent kSumBlock{kBlock, kBlock};

// The lines of a matrix in memory, and the blocks of a fragment in it. `columns`: lines are columns of the matrix.
class Matrix {
 public:
  Matrix(Warp& warp, const Op& op, u64 address, u32 element_bytes, Extent block, u32 blocks, Access access)
      : warp_(warp),
        op_(op),
        block_(block),
        element_bytes_(element_bytes),
        columns_(kColumns(op)),
        address_(address),
        pitch_(static_cast<u64>(warp.lanes<u32>(kPitch(op))[first_lane(warp.live)]) * element_bytes),
        access_(access) {
    u64 size = 0;
    for (u32 i = 0; i < blocks; ++i) size = std::max(size, offset(position(kLayout(op), i), lines() - 1, 0) + line_bytes());
    host_ = unchecked(size);
  }

  bool columns() const { return columns_; }
  u32 lines() const { return columns_ ? block_.columns : block_.rows; }  // of a block
  u32 line_bytes() const { return (columns_ ? block_.rows : block_.columns) * element_bytes_; }

  void load(Position block, u32 line, void* to) const {
    for_pieces([&](u32 from, u32 bytes) {
      bool poison = false;
      const u8* memory = at(block, line, from, bytes, &poison);
      std::memcpy(static_cast<u8*>(to) + from, memory && !poison ? memory : warp_.run->poison_bytes, bytes);
    });
  }

  void store(Position block, u32 line, const void* values) const {
    for_pieces([&](u32 from, u32 bytes) {
      u8* memory = at(block, line, from, bytes, nullptr);
      if (memory) std::memcpy(memory, static_cast<const u8*>(values) + from, bytes);
    });
  }

 private:
  u64 offset(Position block, u32 line, u32 from) const {
    const u32 across = columns_ ? block.column : block.row, along = columns_ ? block.row : block.column;
    return (u64{across} * lines() + line) * pitch_ + u64{along} * line_bytes() + from;
  }

  // Calls `touch(offset, bytes)` for the pieces of a line, of 16 bytes or the whole of a shorter one.
  template <typename Touch>
  void for_pieces(Touch&& touch) const {
    const u32 bytes = line_bytes(), piece = std::min(bytes, kRowBytes);
    for (u32 from = 0; from < bytes; from += piece) touch(from, piece);
  }

  // A lane of the hardware touches a part of the line only.
  u8* at(Position block, u32 line, u32 from, u32 bytes, bool* poison) const {
    const u64 away = offset(block, line, from);
    if (host_) return host_ + away;
    const Space space = space_of(op_);
    const int lane = static_cast<int>(4 * line) % kLanes;
    return memory_at(warp_, op_, lane, space, address_ + away, bytes, access_, poison, {.together = true});
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
  Extent block_;
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

// A and B, and accumulators of f16: a register is a block of eight lines along k, which of B are its columns.
template <typename Address, typename Value>
void load_operand(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  constexpr u32 kDepth = depth_of(sizeof(Value));
  const u32* slots = listed(warp, op);
  const u32 distinct = std::min<u32>(kDistinct(op), kBlock);
  const Extent block = operand_block(kLayout(op), sizeof(Value));
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), sizeof(Value), block, distinct, Access::kRead);
  const bool transposed = matrix.columns() != is_right(kLayout(op));
  Value blocks[kBlock][kBlock][kDepth];  // read whole, for a register may hold the address
  for (u32 i = 0; i < distinct; ++i) {
    const Position place = position(kLayout(op), i);
    for (u32 line = 0; line < matrix.lines(); ++line) {
      if (!transposed) {
        matrix.load(place, line, blocks[i][line]);
        continue;
      }
      Value values[kBlock];
      matrix.load(place, line, values);
      for (u32 along = 0; along < kBlock; ++along) blocks[i][along][line] = values[along];
    }
  }
  for (u32 i = 0; i < op.count && distinct; ++i) std::memcpy(warp.registers + slots[i], blocks[i % distinct], sizeof blocks[0]);
}

template <typename Address>
void store_halves(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  const Matrix matrix(warp, op, matrix_address<Address>(warp, op, mask), 2, kSumBlock, op.count, Access::kWrite);
  for (u32 i = 0; i < op.count; ++i) {
    __m128i rows[kBlock];
    load_block(warp.registers + slots[i], rows);
    if (matrix.columns()) transpose(rows);
    for (u32 line = 0; line < kBlock; ++line) matrix.store(position(kLayout(op), i), line, &rows[line]);
  }
  ++warp.run->events;
}

// Element (row, column) of a block of f32, s32 or f64: in the register of its column's parity.
template <typename Value>
Value& element(u8* even, u8* odd, u32 row, u32 column) {
  return reinterpret_cast<Value*>(column & 1 ? odd : even)[4 * row + column / 2];
}

template <typename Address, typename Value>
void load_sums(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  Value values[kBlock][kBlock][kBlock];  // block, line, element
  const u32 blocks = std::min<u32>(op.count / 2, kBlock);
  const u64 address = matrix_address<Address>(warp, op, mask);
  const Matrix matrix(warp, op, address, sizeof(Value), kSumBlock, blocks, Access::kRead);
  for (u32 i = 0; i < blocks; ++i) {
    for (u32 line = 0; line < kBlock; ++line) matrix.load(position(kLayout(op), i), line, values[i][line]);
  }
  for (u32 i = 0; i < blocks; ++i) {
    u8 *even = warp.registers + slots[2 * i], *odd = warp.registers + slots[2 * i + 1];
    for (u32 row = 0; row < kBlock; ++row) {
      for (u32 column = 0; column < kBlock; ++column) {
        element<Value>(even, odd, row, column) = matrix.columns() ? values[i][column][row] : values[i][row][column];
      }
    }
  }
}

template <typename Address, typename Value>
void store_sums(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask) || !agree<Address>(warp, op, mask)) return;
  const u32* slots = listed(warp, op);
  const u64 address = matrix_address<Address>(warp, op, mask);
  const Matrix matrix(warp, op, address, sizeof(Value), kSumBlock, op.count / 2, Access::kWrite);
  for (u32 i = 0; i < op.count / 2; ++i) {
    u8 *even = warp.registers + slots[2 * i], *odd = warp.registers + slots[2 * i + 1];
    for (u32 line = 0; line < kBlock; ++line) {
      Value values[kBlock];
      for (u32 along = 0; along < kBlock; ++along) {
        values[along] = matrix.columns() ? element<Value>(even, odd, along, line) : element<Value>(even, odd, line, along);
      }
      matrix.store(position(kLayout(op), i), line, values);
    }
  }
  ++warp.run->events;
}

// Names: what is loaded or stored (A and B are operands, C and D sums), the bits of an element, those of an address.
template <typename Address>
void add_memory(Registry& registry, const std::string& width) {
  const auto add = [&](const char* name, Handler run, u8 bytes) {
    registry.add("wmma." + std::string(name) + "." + width, run,
                 {list("values", bytes), kAddressOf<Address>, kPitch, kSpaceOf, kLayout, kColumns, kDistinct});
  };
  add("load.operand.b8", load_operand<Address, u8>, 4);
  add("load.operand.b16", load_operand<Address, u16>, 4);
  add("load.operand.b32", load_operand<Address, u32>, 4);
  add("load.operand.b64", load_operand<Address, u64>, 8);
  add("load.sums.b16", load_operand<Address, u16>, 4);
  add("load.sums.b32", load_sums<Address, u32>, 4);
  add("load.sums.b64", load_sums<Address, u64>, 8);
  add("store.b16", store_halves<Address>, 4);
  add("store.b32", store_sums<Address, u32>, 4);
  add("store.b64", store_sums<Address, u64>, 8);
}

}  // namespace

void register_wmma(Registry& registry) {
  add_memory<u32>(registry, "u32");
  add_memory<u64>(registry, "u64");
}

}  // namespace emulator
