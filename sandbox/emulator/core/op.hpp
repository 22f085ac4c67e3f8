// A program as the core executes it: a flat table of operations over register slots.
//
// A slot holds one register of all 32 lanes, lane after lane, at a byte offset of the warp's register file; offset 0 is no
// slot. A predicate is one 32-bit mask with a bit a lane. Constants are slots at the file's beginning that no operation writes.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "bits.hpp"

namespace emulator {

struct Warp;
struct Op;

using Handler = void (*)(Warp&, const Op&, u32 mask);

// How the interpreter goes on after an operation; everything but kPlain touches program counters.
enum Kind : u8 {
  kPlain,
  kBranch,         // imm: target
  kBranchIndexed,  // a: index slot (4 bytes), list: targets
  kExit,
  kWaiting,  // the handler may block lanes, set warp.yielded, or set warp.waiting to be executed again later
  kPoll,     // as kPlain, but that the handler may set warp.yielded
};

enum Flags : u8 {
  kNegated = 1,     // the guard predicate is inverted
  kCollective = 2,  // lanes of the mask in slot `meeting` (all live lanes where that is 0) execute it together
  kTracked = 4,     // touches registers that a wgmma reads or writes asynchronously (lists in Program::tracked)
};

// As the Python side lays it out (lowering/table.py has the same fields in the same order).
struct OpRecord {
  u16 handler;  // index in the registry
  u8 kind;
  u8 flags;
  u32 guard;          // predicate slot, 0: always
  u32 d, a, b, c, e;  // slots
  u32 meeting;        // slot of the member mask of a collective
  u32 list, count;    // range of Program::lists: slots of vector operands, branch targets
  u32 p, q, r, s;     // small numbers whose meaning is the handler's
  u32 instruction;    // index of the PTX instruction, for reports
  i64 imm;
};
static_assert(sizeof(OpRecord) == 72, "the table is shared with Python");

struct Op : OpRecord {
  Handler run;
};

// Bytes a lane of every slot that a handler touches; kMask: a predicate. Checked once when a program is loaded.
constexpr u8 kMask = 255;
struct Signature {
  u8 d = 0, a = 0, b = 0, c = 0, e = 0;
  u8 list = 0;   // bytes a lane of every listed slot
  u8 least = 0;  // listed slots at the least
};

// Whether a handler takes an operation's kind, list and numbers, where it does not take all: lengths of what it copies.
using Legal = bool (*)(const OpRecord&);

struct Registered {
  Handler run;
  Signature signature;
  Legal legal;  // null: anything is
};

// Handlers by name. A lowering rule asks by name; a name that is not here makes the kernel unsupported.
class Registry {
 public:
  void add(std::string name, Handler run, Signature signature, Legal legal = nullptr) {
    index_.emplace(name, static_cast<u32>(entries_.size()));
    names_.push_back(std::move(name));
    entries_.push_back({run, signature, legal});
  }
  const std::vector<std::string>& names() const { return names_; }
  const Registered* find(u32 index) const { return index < entries_.size() ? &entries_[index] : nullptr; }

 private:
  std::unordered_map<std::string, u32> index_;
  std::vector<std::string> names_;
  std::vector<Registered> entries_;
};

const Registry& registry();

// One file of handlers each.
void register_integer(Registry&);  // integer and logic, comparisons, selection
void register_float(Registry&);    // f32, f64, f16, bf16 arithmetic
void register_convert(Registry&);  // cvt, cvta, mov, pack and unpack
void register_warp(Registry&);     // shfl, vote, match, redux, elect, activemask
void register_memory(Registry&);   // ld, st, discard, mapa
void register_atomics(Registry&);  // atom, red
void register_matrix(Registry&);   // ldmatrix, stmatrix, movmatrix, wmma.load, wmma.store
void register_mma(Registry&);      // mma, wmma.mma
void register_wgmma(Registry&);    // wgmma
void register_copy(Registry&);     // cp.async
void register_bulk(Registry&);     // cp.async.bulk, tensor copies and reductions
void register_barrier(Registry&);  // bar, barrier.cluster, mbarrier, fences, griddepcontrol

}  // namespace emulator
