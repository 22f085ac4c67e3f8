// Shadows of memory: who wrote and read each piece last, to tell races and reads of what nobody wrote.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "order/clock.hpp"
#include "order/report.hpp"

namespace emulator {

// How an access takes part in synchronisation: strong ones (atomic, volatile, relaxed and stronger) never race with each other.
enum class Access : u8 { kRead, kWrite };

//
// Lanes: whoever made an access is in order behind it, other lanes of the warp are once they have met. kTogether: an access of
// the whole warp, where fragments decide which lane has which bytes; loads and stores of fragments have them alike.
// kAnybody: writes of several lanes in one instruction. kSeveral: reads of several lanes.
constexpr u8 kTogether = 32, kAnybody = 33, kSeveral = 34;

struct Toucher {
  Epoch epoch;             // the event that the access is
  u32 self;                // component of the warp that issues it
  u32 moment;              // of that warp
  u8 lane;                 // or kTogether
  const u32* ordered;          // by OwnAgent: up to which event of the warp its lanes are in order
  const Clock* events;     // what those who make the access know of other warps and their engines
  const View* view;  // what some lane of the warp knows
  u32 instruction;
  bool async = false;  // through the async proxy
  bool strong = false;
  u32 running = 0;  // launches that may still run beside it, by their numbers
  u8 launch = 0;    // its own
};

// In order of weight: an access that meets several is told the last.
enum class ConflictKind : u8 {
  kNone,
  kUnwritten,
  kWriteBehindRead,
  kReadBehindWrite,
  kUnfenced,
  kWriteBehindWrite,
  kBarrier,
  kUnfinished
};

// What an access met, with the event it collides with.
struct Conflict {
  ConflictKind kind = ConflictKind::kNone;
  Epoch other;
  u32 instruction = kNoInstruction;
  u32 cluster = 0;  // of the other, in global memory; kUnfinished: the number of its launch

  void worsen(const Conflict& found) {
    if (found.kind > kind) *this = found;
  }
};

// Shared memory of one CTA, in cells of 16 bytes that are split into words, and words into bytes, where accesses are smaller.
class SharedShadow {
 public:
  void reset(u32 bytes);

  // Notes an access to [offset, offset + size) and returns the worst that it met.
  Conflict touch(u32 offset, u32 size, Access access, const Toucher& by);

  // Whether somebody has written all of it.
  bool written(u32 offset, u32 size) const;

  // Declares the 8 bytes of an mbarrier closed to ordinary accesses, or open again.
  void mark_barrier(u32 offset, bool barrier);

 private:
  struct Reader {
    Epoch epoch;
    u32 instruction;
    bool strong;
    u8 lane;
  };
  static constexpr u32 kReaders = 4;
  struct Cell {
    Epoch write;
    u32 write_instruction = kNoInstruction;
    bool written = false, write_async = false, write_strong = false, barrier = false;
    u8 write_lane = kTogether;
    u8 readers = 0;
    u32 split = 0;  // 1 + index of its parts, 0: whole
    Reader reads[kReaders];
    std::unique_ptr<std::vector<Reader>> more;  // readers beyond those
  };
  struct Parts {
    Cell parts[4];
  };

  bool written_within(const Cell& cell, u32 unit, u32 begin, u32 end) const;
  static Conflict read(Cell& cell, const Toucher& by);
  static Conflict write(Cell& cell, const Toucher& by);
  static void note_reader(Cell& cell, const Toucher& by);
  Conflict touch_within(Cell& cell, u32 unit, u32 begin, u32 end, Access access, const Toucher& by);
  Parts& split(Cell& cell);

  std::vector<Cell> cells_;
  std::vector<std::unique_ptr<Parts>> parts_;
};

// Global memory of one buffer that the kernel may write, in pieces of two bytes.
class GlobalShadow {
 public:
  // `written_bytes`: the beginning that holds something before the kernel runs.
  GlobalShadow(u64 bytes, u64 written_bytes);

  Conflict touch(u64 offset, u32 size, Access access, const Toucher& by, u32 cluster);

  bool written(u64 offset, u32 size);

  // A kernel ended: what it did happened before all that follows, but for launches that may run beside it.
  void settle();

  // Ranges of bytes, in order: those that a launch wrote last, or that were read unwritten (launch 0).
  std::vector<std::pair<u64, u64>> ranges(u32 launch) const;

 private:
  struct Piece {
    Epoch write, read;
    u32 write_cluster = 0, read_cluster = 0;
    u32 write_instruction = kNoInstruction, read_instruction = kNoInstruction;
    bool written = false, write_strong = false, read_strong = false, missed = false;
    u8 write_lane = kTogether, read_lane = kTogether;
    u8 write_launch = 0, read_launch = 0;  // the numbers of launches, 0: none
  };
  static constexpr u64 kPage = 2048;  // pieces
  struct Page {
    Piece pieces[kPage];
  };

  Piece& piece(u64 index);
  static bool unfinished(const Piece& piece, Access access, const Toucher& by, u32* launch);
  static Conflict touch_piece(Piece& piece, Access access, const Toucher& by, u32 cluster);

  u64 written_bytes_;
  std::vector<std::unique_ptr<Page>> pages_;
};

}  // namespace emulator
