// Shadows of memory: the last accesses to each piece, by which races and reads of unwritten memory are found.
#pragma once

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "order/clock.hpp"
#include "order/report.hpp"

namespace emulator {

enum class Access : u8 { kRead, kWrite };

// The lane of an access. An access happens before later accesses of the same lane; other lanes of the warp are ordered after it
// once they reconverge. kTogether: an access of the whole warp, where fragments decide which lane has which bytes. kAnybody:
// writes of several lanes in one instruction. kSeveral: reads of several lanes.
constexpr u8 kTogether = 32, kAnybody = 33, kSeveral = 34;

// Who makes an access, and how. Strong accesses (atomic, volatile, relaxed and stronger) never race with each other.
struct Toucher {
  Epoch epoch;                             // the event that the access is
  u32 self;                                // component of the warp that issues it
  u32 moment;                              // of that warp
  u8 lane;                                 // or kTogether
  const u32* ordered;                      // by OwnAgent: the last event of the warp that is ordered before all its lanes
  const Clock* events;                     // events of other warps and their engines that happen before the access
  const View* view;                        // what happens before the present of any lane of the warp
  const std::vector<CopyStream>* streams;  // of the warp's copies by cp.async
  u32 copied;                              // up to this number the lane has waited for its own copies
  u32 instruction;
  bool async = false;  // through the async proxy
  bool strong = false;
  u32 running = 0;  // launches that may still run concurrently, by their numbers
  u8 launch = 0;    // the number of its own launch
};

// In order of severity: of several conflicts of an access, the most severe is reported.
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

// A conflict of an access with an earlier event.
struct Conflict {
  ConflictKind kind = ConflictKind::kNone;
  Epoch other;
  u32 instruction = kNoInstruction;
  u32 cluster = 0;  // of the other, in global memory; kUnfinished: the number of its launch

  void worsen(const Conflict& found) {
    if (found.kind > kind) *this = found;
  }
};

// Shared memory of one CTA, in cells of 16 bytes. Smaller accesses split a cell into words, and a word into bytes.
class SharedShadow {
 public:
  void reset(u32 bytes);

  // Records an access to [offset, offset + size) and returns its most severe conflict.
  Conflict touch(u32 offset, u32 size, Access access, const Toucher& by);

  // Whether all of the range has been written.
  bool written(u32 offset, u32 size) const;

  // Marks the 8 bytes of an mbarrier as reserved, or as ordinary memory again.
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

// Global memory of one buffer that the kernel may write, in pieces of two bytes, or of one where its elements are bytes.
class GlobalShadow {
 public:
  // `written_bytes`: at the beginning, initialised before the kernel runs.
  GlobalShadow(u64 bytes, u64 written_bytes, u32 piece_bytes);

  Conflict touch(u64 offset, u32 size, Access access, const Toucher& by, u32 cluster);

  bool written(u64 offset, u32 size);

  // After a kernel: its accesses happen before all later ones, except those of launches that may run concurrently.
  void settle();

  // Ranges of bytes, in order, that a launch wrote last. Launch 0: those that were read unwritten.
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
  u32 piece_bytes_;
  std::vector<std::unique_ptr<Page>> pages_;
};

}  // namespace emulator
