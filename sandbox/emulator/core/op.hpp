// A program as the core executes it: a flat table of operations over register slots.
//
// A slot holds one register of all 32 lanes, lane after lane, at a byte offset of the warp's register file; offset 0 is no
// slot. Constants are slots at the file's beginning that no operation writes.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "bits.hpp"
#include "operand.hpp"

namespace emulator {

struct Warp;
struct Op;

using Handler = void (*)(Warp&, const Op&, u32 mask);

// How the interpreter goes on after an operation. Every kind but kPlain and kPoll changes program counters.
enum Kind : u8 {
  kPlain,
  kBranch,         // imm: target
  kBranchIndexed,  // a: index slot (4 bytes), list: targets
  kExit,
  kWaiting,  // the handler may block lanes, set warp.yielded, or set warp.waiting to be executed again later
  kPoll,     // as kPlain, but the handler may set warp.yielded
};

enum Flags : u8 {
  kNegated = 1,     // the guard predicate is inverted
  kCollective = 2,  // lanes of the mask in slot `members` (all live lanes where that is 0) execute it together
  kTracked = 4,     // touches registers that a wgmma reads or writes asynchronously (lists in Program::tracked)
};

struct Op : OpRecord {
  Handler run;
};

// Bytes per lane of every slot that a handler touches, which follow from its operands. Checked once when a program is loaded.
struct Signature {
  u8 d = 0, a = 0, b = 0, c = 0, e = 0;
  u8 list = 0;     // bytes per lane of every listed slot
  u8 minimum = 0;  // of listed slots
};

// Whether a handler accepts an operation's kind, list and numbers. Null where it accepts all of them.
using Legal = bool (*)(const OpRecord&);

struct Registered {
  std::string name;
  Handler run;
  Signature signature;
  Legal legal;
  std::vector<Operand> operands;
};

// Handlers by name. A lowering rule asks by name; a kernel that needs a name that is not here is unsupported.
class Registry {
 public:
  void add(std::string name, Handler run, std::vector<Operand> operands, Legal legal = nullptr);
  const std::vector<Registered>& all() const { return entries_; }
  const Registered* find(u32 index) const { return index < entries_.size() ? &entries_[index] : nullptr; }

 private:
  std::vector<Registered> entries_;
};

const Registry& registry();

// One file of handlers each.
void register_integer(Registry&);          // integer and logic, comparisons, selection
void register_float(Registry&);            // f32, f64, f16, bf16 arithmetic
void register_convert(Registry&);          // cvt, cvta, mov, pack and unpack
void register_warp(Registry&);             // shfl, vote, match, redux, elect, activemask
void register_memory(Registry&);           // ld, st, discard, mapa
void register_atomics(Registry&);          // atom, red
void register_matrix(Registry&);           // ldmatrix, stmatrix, movmatrix
void register_wmma(Registry&);             // wmma.load, wmma.store
void register_mma(Registry&);              // mma, wmma.mma
void register_wgmma(Registry&);            // wgmma
void register_copy(Registry&);             // cp.async
void register_bulk_load(Registry&);        // cp.async.bulk into shared memory
void register_bulk_store(Registry&);       // cp.async.bulk into global memory, reductions, groups
void register_prefetch(Registry&);         // prefetch, cp.async.bulk.prefetch
void register_remote_store(Registry&);     // st.async
void register_named_barrier(Registry&);    // bar
void register_cluster_barrier(Registry&);  // barrier.cluster
void register_mbarrier(Registry&);         // mbarrier
void register_fence(Registry&);            // fences, griddepcontrol

}  // namespace emulator
