// Taint of old contents: what memory and registers hold that this run has not written, followed to its uses.
//
// A run with `Options::taint` keeps a shadow of every register, of shared, local and writable global memory. A bit of the
// shadow is set where that bit of the value depends on old contents. Most operations move bits, so their own handlers are
// executed once more, on the shadow. Other operations have a rule, or the general one: a result is old in a lane if any
// source is. Old contents that decide a branch, an address that is written to, a barrier or an asynchronous operation are a
// fault at once; those left in an output are found in `GlobalTaint` after the last launch. A load from an old address gives an
// old value. Source: Stepanov and Serebryany, MemorySanitizer (CGO 2015), for the shadow bits.
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "bits.hpp"

namespace emulator {

struct Op;
struct Warp;
struct Cluster;
struct LaneCopy;
struct Program;
struct Product;
struct ProductForm;
struct ProductRegisters;
class Run;

// The shadow of a buffer that kernels may write, and the last writer of each piece.
class GlobalTaint {
 public:
  // `written_bytes`: the beginning that is not old.
  GlobalTaint(u64 bytes, u64 written_bytes);

  // Shadow bytes for one access, which does not reach over a multiple of 4096.
  u8* access(u64 offset, u32 bytes, bool writes, u32 instruction);
  void read(u64 offset, u64 bytes, u8* old);
  void write(u64 offset, u64 bytes, const u8* old, u32 instruction);

  // What was written with old contents and not overwritten, in ranges of one launch and instruction each.
  struct Left {
    u64 offset, bytes;
    u32 launch, instruction;
  };
  std::vector<Left> left() const;

  u32 launch = 0;  // since it was made

 private:
  static constexpr u64 kPage = 4096, kSlack = 128;
  struct Page {
    u8 old[kPage + kSlack];
    u64 writers[kPage];  // of each byte: 0 none, else the launch and 1 + the instruction
  };
  Page& page(u64 offset);
  void note_writer(u64 offset, u64 bytes, u32 instruction);

  u64 written_bytes_;
  std::vector<std::unique_ptr<Page>> pages_;
};

// ---- a run -----------------------------------------------------------------------------------------------------------------
// The program with operations that propagate taint before they execute.
Program with_taint(const Program& program);
// From a register's slot to that of its shadow.
u32 shadow_offset(const Program& program);
void start_taint(Warp& warp);

// ---- hooks -----------------------------------------------------------------------------------------------------------------
// The guard of an operation has been read for `lanes`; `running` of them execute it.
void taint_guard(Warp& warp, const Op& op, u32 lanes, u32 running);
void taint_indexed_branch(Warp& warp, const Op& op, u32 lanes);

using CopyTaint = std::array<u8, 16>;
// Keeps what of a copy by cp.async is old; 0 where nothing is.
u32 keep_taint(Warp& warp, const Op& op, int lane, u64 source, u32 bytes);
void put_taint(Warp& warp, const LaneCopy& copy);

// Of the warpgroup whose first warp this is.
void taint_product(Warp& first, const ProductForm& form, const Product& product, const ProductRegisters& registers);

// A copy between two places in host memory that belong to shared memory of the cluster or to a buffer. `element`: bytes of
// what is combined with the target, 0 where the target is overwritten.
void move_taint(Run& run, Cluster& cluster, u8* to, const u8* from, u64 bytes, u32 element, u32 instruction);
// The same from and to shadow bytes.
void read_taint(Run& run, Cluster& cluster, const u8* host, u64 bytes, u8* old);
void write_taint(Run& run, Cluster& cluster, u8* host, u64 bytes, const u8* old, u32 element, u32 instruction);

}  // namespace emulator
