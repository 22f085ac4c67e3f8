#include <stdexcept>
#include <string>

#include "machine/address_space.hpp"
#include "machine/program.hpp"

namespace emulator {

namespace {

constexpr u32 kMaxRegisterBytes = 1 << 22;  // of a warp

class Checker {
 public:
  explicit Checker(const Program& program) : program_(program) {}

  void check() const {
    const std::vector<Op>& ops = program_.ops;
    if (ops.empty() || ops.back().kind != kExit || ops.back().guard) fail("does not end with an exit");
    if (program_.constants.size() > program_.register_bytes) fail("has more constants than registers");
    if (program_.register_bytes > kMaxRegisterBytes) fail("has too many registers");
    if (program_.static_smem_end < kSharedBase) fail("has shared memory below its beginning");
    for (const Op& op : ops) check(op);
    for (const SpecialSlot& special : program_.specials) {
      slot(special.slot, 4);
      if (special.which >= kSpecials) fail("has an unknown special register");
    }
    for (const SymbolSlot& symbol : program_.symbols) {
      if (symbol.bytes != 4 && symbol.bytes != 8) fail("has a symbol of a strange size");
      slot(symbol.slot, symbol.bytes);
    }
    for (const auto* lists : {&program_.tracked_reads, &program_.tracked_writes}) {
      if (lists->size() != ops.size()) fail("has no tracked registers for every operation");
      for (const auto& slots : *lists) {
        for (u32 each : slots) slot(each, 4);
      }
    }
  }

 private:
  void check(const Op& op) const {
    if (op.guard) slot(op.guard, kMask);
    if (op.members) slot(op.members, 4);
    if (op.kind > kPoll) fail("has an operation of an unknown kind");
    if (op.list > program_.lists.size() || op.count > program_.lists.size() - op.list) fail("has a list out of bounds");
    if (op.kind == kBranch) return target(op.imm);
    if (op.kind == kBranchIndexed) {
      if (!op.count) fail("has an indexed branch without targets");
      slot(op.a, 4);
      for (u32 i = 0; i < op.count; ++i) target(program_.lists[op.list + i]);
      return;
    }
    if (op.kind == kExit) return;
    const Registered* entry = registry().find(op.handler);
    if (!entry) fail("has an operation without a handler");
    const Signature& signature = entry->signature;
    slot(op.d, signature.d);
    slot(op.a, signature.a);
    slot(op.b, signature.b);
    slot(op.c, signature.c);
    slot(op.e, signature.e);
    if (op.count < signature.minimum) fail("has an operation with too few listed operands");
    if (entry->legal && !entry->legal(op)) fail("has an operation with numbers that its handler does not take");
    for (u32 i = 0; i < op.count; ++i) slot(program_.lists[op.list + i], signature.list);
  }

  void slot(u32 offset, u8 bytes) const {
    const u64 size = bytes == kMask ? 4 : static_cast<u64>(bytes) * kLanes;
    if (offset % 32 || offset + size > program_.register_bytes) fail("has a slot outside the register file");
  }
  void target(i64 pc) const {
    if (pc < 0 || static_cast<u64>(pc) >= program_.ops.size()) fail("branches out of bounds");
  }
  [[noreturn]] static void fail(const char* what) { throw std::invalid_argument(std::string("the program ") + what); }

  const Program& program_;
};

}  // namespace

void check(const Program& program) { Checker(program).check(); }

}  // namespace emulator
