// A trace of a run: what its warps issue and wait for, as rows that a timing model replays.
//
// Rows are recorded in the order of execution. A token stands for an event that rows give and rows wait for: the end of a
// phase of a barrier, a committed group of asynchronous work, a write to memory by which CTAs synchronise. It is complete when
// every row that gives it has taken effect. Repetitions of a wait that fails are left out.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "op.hpp"

namespace emulator {

class Run;
struct Warp;

enum TraceKind : u32 {
  kTraceEnd,          // the warp has ended
  kTraceWait,         // waits for the token
  kTraceArrive,       // gives the token
  kTraceBulkLoad,     // amount: bytes, parts: rows, of a bulk copy into shared memory that gives the token
  kTraceBulkTarget,   // the load before this row writes the shared memory of another CTA too, and gives the token
  kTraceBulkShared,   // amount: bytes from one shared memory to another
  kTraceBulkStore,    // amount: bytes, parts: rows
  kTraceProduct,      // wgmma. amount: n, parts: 1 where A lies in registers
  kTraceFragments,    // mma or wmma.mma. amount: multiply-adds
  kTraceLoad,         // amount: bytes in sectors, parts: lines; of global memory
  kTraceStore,        // as kTraceLoad; gives the token, if any
  kTraceAtomic,       // amount: lanes
  kTraceSharedLoad,   // amount: wavefronts
  kTraceSharedStore,  // amount: wavefronts
  kTraceRemoteLoad,   // amount: bytes of shared memory of a peer
  kTraceRemoteStore,  // amount: bytes; gives the token, if any
  kTraceCopy,         // cp.async. amount: bytes, parts: lines
  kTraceCommit,       // gives the token when what the stream issued is complete. parts: TraceKind of it
  kTraceFence,
  kTraceDependency,  // griddepcontrol.wait
  kTraceTrigger,     // griddepcontrol.launch_dependents
  kTraceKinds
};

struct TraceRow {
  u32 stream;       // CTA by its place in Trace::ctas, times 32, plus the warp
  u32 kind;         // TraceKind
  u32 gap;          // operations of the warp since its row before
  u32 instruction;  // PTX instruction
  u32 amount, parts;
  u32 token;  // 0: none
  u32 lanes;
  u64 address;  // of the first byte in global memory
};

class Trace {
 public:
  explicit Trace(u64 most_rows);

  // Whether anything of an operation is recorded: only then are `before` and `after` called.
  bool records(const Op& op) const { return recorded_[op.handler]; }
  // Before an operation is executed by some lanes. False if it need not be: a product, which takes long.
  bool before(Warp& warp, const Op& op, u32 lanes);
  // After it was executed. Not called for branches and exits.
  void after(Warp& warp, const Op& op, u32 lanes);
  void ended(Warp& warp);
  // Where the run can go on only with what CTAs that are not traced would write: writes it for them, as traced CTAs do. False
  // if nothing is waited for in global memory.
  bool release(Run& run);

  std::vector<TraceRow> rows;
  std::vector<u64> ctas;  // linear indices in the grid
  u32 tokens = 1;

 private:
  enum What : u64 { kPhase, kNamed, kWhole, kProducts, kCopies, kStores, kVersion };  // that tokens stand for
  // Of a stream: the warp's moment at its last row, the token of its last write for others, and the reads by which it has
  // polled since it did anything else.
  struct Last {
    u32 moment = 1, given = 0;
    std::vector<std::size_t> polls;
  };
  struct Gathered {
    u64 generation = 0;
    u32 arrived = 0;
  };
  u32 stream_of(Warp& warp);
  Last& last_of(u32 stream);
  u32 token(u64 what, u64 where, u64 number);
  TraceRow& add(Warp& warp, const Op& op, TraceKind kind, u32 amount, u32 parts, u32 token);
  u32 phase_token(Warp& warp, u32 address, i64 before);
  void arrive(Warp& warp, const Op& op, u32 lanes, TraceKind kind);
  void bulk_load(Warp& warp, const Op& op, u32 lanes, u32 form);
  void bulk_store(Warp& warp, const Op& op, u32 lanes, bool tensor);
  void named_barrier(Warp& warp, const Op& op, u32 lanes, bool waits);
  void tested(Warp& warp, const Op& op, u32 lanes);
  void access(Warp& warp, const Op& op, u32 lanes, u32 form, u32 bytes);
  bool repeated(Warp& warp, const Op& op, u64 address, u32 written);
  void shared(Warp& warp, const Op& op, u32 lanes, const u32* offsets, u32 bytes, bool reads);
  void matrices(Warp& warp, const Op& op, u32 lanes, bool reads);
  void note_change(Warp& warp, const Op& op, u32 lanes, u32 form);
  void copy(Warp& warp, const Op& op, u32 lanes);
  void remote(Warp& warp, const Op& op, u32 lanes);

  u64 most_rows_;
  std::vector<u8> recorded_;             // by handler
  std::unordered_map<u64, u32> places_;  // of CTAs in `ctas`
  u64 cta_ = ~0ull;                      // the one that was looked up last, and its place
  u32 place_ = 0;
  std::vector<Last> last_;                           // by stream
  std::unordered_map<u64, std::vector<u32>> known_;  // tokens by what they stand for and where, then by number; 0: none yet
  std::unordered_map<u64, Gathered> gathered_;       // by CTA and named barrier
  std::unordered_map<u64, u64> versions_;            // by address: writes by which CTAs synchronise
  std::unordered_map<u64, u32> changes_;             // by address: what the last of them added
  std::set<u64> polled_;                             // addresses at which warps wait in vain
  u32 change_ = 1, before_ = 0, releases_ = 0;       // change_: at any address, last
};

}  // namespace emulator
