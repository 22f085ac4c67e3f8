// The emulated machine, and what its parts offer one another.
#pragma once

#include "machine/limits.hpp"
#include "machine/run.hpp"

namespace emulator {

// ---- turns ------------------------------------------------------------------------------------------------------------------
// progress.cpp: a read that may be repeated until another agent changes what it reads; sets warp.yielded where it is.
// `seen`: a hash of what was read.
void note_poll(Warp& warp, const Op& op, u64 seen);
inline u64 mixed(u64 state, u64 value) {
  state = (state ^ value) * 0x9E3779B97F4A7C15ull;
  return state ^ state >> 29;
}

// The next number of a generator.
u64 drawn(u64& state);

// A warp has issued asynchronous work that it must wait for; ends the run where that is too much.
void count_issued(Warp& warp);

// interpreter.cpp: executes a warp until it ends, waits, or has had its turn of `most` operations; returns how many it
// executed.
u64 advance(Warp& warp, u64 most);

// ---- reporting --------------------------------------------------------------------------------------------------------------
// Notes a fault of this warp at this operation; `lanes` are those concerned.
void report(Warp& warp, const Op& op, u32 lanes, const char* kind, u64 address, const std::string& message,
            u32 other = kNoInstruction, bool suspect = false);

// ---- memory access (memory.cpp) ---------------------------------------------------------------------------------------------
// All return host memory of `bytes` bytes for one lane, or null after a report. Accesses are checked for bounds, alignment,
// permission and, where the run looks for races, ordering; `poison` is set where the value read must be replaced by poison.
struct Touch {
  bool strong = false;    // atomic, volatile, relaxed or stronger
  bool async = false;     // through the async proxy
  bool together = false;  // by all lanes of the warp, not by the one that gives the address
  Epoch epoch{};          // of the asynchronous agent that does it; the warp itself where its value is 0
};
u8* shared_at(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch = {});
u8* global_at(Warp& warp, const Op& op, int lane, u64 address, u32 bytes, Access access, bool* poison, const Touch& touch = {});
// By space; generic addresses find their window.
u8* memory_at(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes, Access access, bool* poison,
              const Touch& touch = {});
// Notes that an atomic is about to read what nobody has written; places that are not there are left to the access itself.
void note_combined(Warp& warp, const Op& op, int lane, Space space, u64 address, u32 bytes);
// A range of shared memory of any size, without alignment rules; null where it is out of bounds.
u8* shared_range(Warp& warp, const Op& op, int lane, u32 address, u32 bytes, Access access, bool* poison, const Touch& touch);
// The warp acquires what others have published, whether they waited for the kernels ahead included.
void acquire_wait(Warp& warp, const ForeignClocks& observed);
// The CTA that a shared address belongs to; null where the cluster has none of that rank.
Cta* cta_of(Warp& warp, u32 address);
// The buffer that holds an address, null where none does.
Buffer* buffer_at(Run& run, u64 address);

// What an access to memory that others may wait on passes on, besides its value. The address is a global one, or a shared
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
// Whether `mask` is the whole warp's live lanes; reports "divergent" where it is not.
bool require_whole_warp(Warp& warp, const Op& op, u32 mask);

// ---- mbarriers (mbarrier.cpp), for what completes on them --------------------------------------------------------------------
// The mbarrier at a shared address; null after a report. `async`: it is signalled through the async proxy.
MBarrier* mbarrier_at(Warp& warp, const Op& op, int lane, u32 address, bool async);
// Whether the initialisation of an mbarrier happens before the warp's present.
bool initialisation_ordered(Warp& warp, const MBarrier& barrier);
// Bytes have arrived, or lanes; completes the phase where nothing is outstanding.
void settle_phase(Run& run, MBarrier& barrier);

// ---- the warp's end ---------------------------------------------------------------------------------------------------------
void finish_copies(Warp& warp);              // copy.cpp
void finish_stores(Warp& warp);              // bulk_store.cpp
void finish_products(Warp& warp);            // wgmma.cpp: reports what was never waited for
void leave_barriers(Warp& warp, u32 lanes);  // cluster_barrier.cpp: lanes that exit no longer keep others waiting
void open_named_barriers(Cta& cta);          // named_barrier.cpp: those that are complete without the lanes that have exited
// wgmma.cpp: an operation touches registers that a wgmma uses.
void note_tracked(Warp& warp, const Op& op, u32 index);

}  // namespace emulator
