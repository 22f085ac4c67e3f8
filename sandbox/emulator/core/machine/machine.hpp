// The emulated machine, and what its parts offer one another.
#pragma once

#include "machine/limits.hpp"
#include "machine/run.hpp"

namespace emulator {

// ---- turns ------------------------------------------------------------------------------------------------------------------
// progress.cpp: notes a read that a loop may repeat until another agent changes the memory; sets warp.yielded if it is
// repeated. `seen`: a hash of what was read.
void note_poll(Warp& warp, const Op& op, u64 seen);
inline u64 mixed(u64 state, u64 value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ull;
  return state ^ state >> 29;
}

// The next number of a generator.
u64 drawn(u64& state);

// Counts asynchronous work that a warp has issued; ends the run when too much of it is not waited for.
void count_issued(Warp& warp);

// interpreter.cpp: executes a warp until it ends, waits, or has executed `most` operations. Returns how many it executed.
u64 advance(Warp& warp, u64 most);

// ---- reporting --------------------------------------------------------------------------------------------------------------
// Records a fault of this warp at this operation. `lanes`: the lanes that cause it.
void report(Warp& warp, const Op& op, u32 lanes, const char* kind, u64 address, const std::string& message,
            u32 other = kNoInstruction, bool suspect = false);

// ---- memory access (memory.cpp) ---------------------------------------------------------------------------------------------
// All return host memory of `bytes` bytes for one lane, or null after a report. They check bounds, alignment, permission and,
// with race detection, happens-before. `poison` is set when the value read is to be replaced by poison.
struct Touch {
  bool strong = false;    // atomic, volatile, relaxed or stronger
  bool async = false;     // through the async proxy
  bool together = false;  // by all lanes of the warp, not only the one that has the address
  Epoch epoch{};          // of the asynchronous agent that makes the access; the warp itself if its value is 0
};
u8* shared_at(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch = {});
u8* global_at(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, bool* poison, const Touch& touch = {});
// By space; a generic address selects its window.
u8* memory_at(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes, Access access, bool* poison,
              const Touch& touch = {});
// Reports an access or prefetch outside all buffers, by the nearest one. `what`: read, write or prefetch.
void report_out_of_global(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, const char* what);
// Reports an atomic that reads unwritten memory. An address out of bounds is left to the access itself.
void note_combined(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes);
// A range of shared memory of any size and alignment; null if it is out of bounds.
u8* shared_range(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch);
// The warp acquires the completion of preceding kernels that another cluster waited for.
void acquire_wait(Warp& warp, const ForeignClocks& observed);
// The CTA that a shared address belongs to; null if the cluster has none of that rank.
Cta* cta_of(Warp& warp, u32 address);
// The buffer that holds an address; null if there is none.
Buffer* buffer_at(Run& run, u64 address);

// ---- conflicting accesses (conflict.cpp) ------------------------------------------------------------------------------------
inline const char* verb(Access access) { return access == Access::kRead ? "read" : "write"; }
// Why a preceding launch may still run.
const char* unordered_because(const Warp& warp);
// Reports a conflict. Returns whether the value read is to be replaced by poison.
bool report_conflict(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, const Conflict& conflict,
                     const Touch& touch, const Cluster* other_cluster, const char* race_kind);

// The memory order of an access to a location by which other threads may synchronise. The address is a global one, a shared
// one (space kShared), or generic.
enum Semantics : u32 { kWeak, kRelaxed, kAcquire, kRelease, kAcquireRelease };
struct MemoryOrder {
  Semantics semantics;
  Scope scope;
  bool acquires() const { return semantics == kAcquire || semantics == kAcquireRelease; }
  bool releases() const { return semantics == kRelease || semantics == kAcquireRelease; }
};
void synchronise(Warp& warp, Space space, u64 address, MemoryOrder order, bool writes);

inline u64 lane_address(Warp& warp, u32 slot, u32 slot_bytes, int lane) {
  return slot_bytes == 4 ? warp.lanes<u32>(slot)[lane] : warp.lanes<u64>(slot)[lane];
}
// Whether `mask` has all live lanes of the warp; reports it as divergent if it does not.
bool require_whole_warp(Warp& warp, const Op& op, u32 mask);

// ---- mbarriers (mbarrier.cpp), for work that completes on them
// ---------------------------------------------------------------- The mbarrier at a shared address; null after a report.
// `async`: the async proxy signals it.
MBarrier* mbarrier_at(Warp& warp, const Op& op, int lane, u32 address, bool async);
// Whether the initialisation of an mbarrier happens before the warp's present.
bool initialisation_ordered(Warp& warp, const MBarrier& barrier);
// After an arrival of threads or bytes: completes the phase if nothing is outstanding.
void settle_phase(Run& run, MBarrier& barrier);

// ---- the warp's end ---------------------------------------------------------------------------------------------------------
void finish_copies(Warp& warp);  // copy.cpp
std::size_t copies_in_flight(const Warp& warp);
// Up to which number, at most the given one, no copy of a component of the warp is in flight.
u32 settled_copies(const Warp& warp, u32 component, u32 number);
void finish_stores(Warp& warp);              // bulk_store.cpp
void finish_products(Warp& warp);            // wgmma.cpp: reports products that were never waited for
void leave_barriers(Warp& warp, u32 lanes);  // cluster_barrier.cpp: lanes that exit are no longer expected
void open_named_barriers(Cta& cta);          // named_barrier.cpp: those that are complete without exited lanes
// wgmma.cpp: checks an operation that touches registers of a wgmma.
void note_tracked(Warp& warp, const Op& op, u32 index);

}  // namespace emulator
