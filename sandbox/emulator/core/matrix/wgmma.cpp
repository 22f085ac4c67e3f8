// wgmma: asynchronous products of a warpgroup, in groups that are waited for.
//
// A product is executed once for the four warps, after all have committed its group: at once under the eager interleaving, when
// a warp waits for it under the latest. To the race detector, an agent of the warpgroup reads the operands from issue to wait.
#include "machine/machine.hpp"
#include "matrix/product.hpp"

namespace emulator {

namespace {

constexpr u32 kWarpgroup = 4;

constexpr Operand kD = list("d", 4, 2), kA = optional(list("a", 4));  // registers; A may lie in shared memory instead
constexpr Operand kDescriptorA = optional(slot("descriptor_a", Field::kA, 8)),
                  kDescriptorB = slot("descriptor_b", Field::kB, 8);
constexpr Operand kAccumulate = slot("accumulate", Field::kC, kMask);  // whether D is added to
constexpr Operand kN = number("n", Field::kP);
constexpr Operand kForm = number("form", Field::kQ, "WgmmaForm");
constexpr Operand kBytes = optional(number("bytes", Field::kR, "ByteForm"));
constexpr Operand kPendingGroups = number("pending", Field::kImm);  // groups that may stay incomplete

ProductForm form_of(const Op& op) {
  const u32 bits = kForm(op);
  ProductForm form;
  form.columns = kN(op);
  form.element = bits & kByteOperands     ? Element::kByte
                 : bits & kTf32Operands   ? Element::kTf32
                 : bits & kBfloatOperands ? Element::kBfloat
                                          : Element::kHalf;
  form.sum = bits & kByteOperands ? Sum::kInteger : bits & kHalfSums ? Sum::kHalf : Sum::kFloat;
  form.bytes = kBytes(op);
  form.negative = !(bits & kNegativeA) != !(bits & kNegativeB);
  form.a_mn_major = bits & kColumnsOfA;
  form.b_mn_major = bits & kRowsOfB;
  return form;
}

u32 sums_of(const Op& op) { return kN(op) / (kForm(op) & kHalfSums ? 4 : 2); }

Warp* warpgroup_of(Warp& warp) {
  std::vector<Warp>& warps = warp.cta->warps;
  const u32 first = warp.index / kWarpgroup * kWarpgroup;
  return first + kWarpgroup <= warps.size() ? &warps[first] : nullptr;
}

// Records the reads of an operand; the first warp does so for the warpgroup.
void touch_operand(Warp& warp, const Op& op, u64 descriptor, bool mn_major, u32 rows) {
  Touch touch;
  touch.async = touch.together = true;
  touch.epoch = {warp.products(), warp.product_number + 1};
  const u32 rank = warp.cta->rank << kRankShift;
  bool inside = true;
  SharedMatrix(descriptor, mn_major).visit_lines(rows, [&](u32 offset) {
    if (inside) inside = shared_range(warp, op, 0, rank | (offset & kOffsetMask), 16, Access::kRead, nullptr, touch) != nullptr;
  });
}

void check_registers(Warp& warp, const Op& op, bool accumulate) {
  const std::vector<u32>& lists = warp.run->program.lists;
  const u32 sums = sums_of(op);
  bool dirty = !warp.product_fenced;
  for (u32 i = accumulate ? 0 : sums; i < op.count && !dirty; ++i) dirty = warp.register_dirty[lists[op.list + i] / 32];
  if (dirty) {
    report(warp, op, kAllLanes, detector::kMissingWgmmaFence, 0,
           warp.product_fenced ? "a register of this wgmma was written since the last wgmma.fence"
                               : "no wgmma.fence precedes the first wgmma");
  }
}

// Accumulators that are added to must have been written. A suspect only, because the elements may be dropped later.
void check_sums(Warp& warp, const Op& op, bool accumulate) {
  const u32* slots = &warp.run->program.lists[op.list];
  bool written = true;
  for (u32 i = 0; i < sums_of(op); ++i) {
    u8& known = warp.sums_written[slots[i] / 32];
    written = written && known;
    known = 1;
  }
  if (accumulate && !written) {
    report(warp, op, kAllLanes, detector::kUninitialisedRead, 0, "adds to uninitialised registers", kNoInstruction, true);
  }
}

// Counts the unfinished products that write a register, and those that read it, for `note_tracked`.
void own_registers(Warp& warp, const Op& op, int change) {
  if (!warp.run->options.races) return;
  const u32 sums = sums_of(op);
  for (u32 i = 0; i < op.count; ++i) {
    const u32 number = warp.run->program.lists[op.list + i] / 32;
    auto& pending = i < sums ? warp.products_writing : warp.products_reading;
    pending[number] = static_cast<u16>(pending[number] + change);
  }
}

void wgmma(Warp& warp, const Op& op, u32 mask) {
  if (!require_whole_warp(warp, op, mask)) return;
  if (!warpgroup_of(warp) || op.count != sums_of(op) + (kForm(op) & kRegistersOfA ? 4 : 0)) {
    report(warp, op, mask, detector::kDivergent, 0, "wgmma by a warp that belongs to no warpgroup of four");
    return;
  }
  Product product;
  product.op = &op;
  product.a = kForm(op) & kRegistersOfA ? 0 : warp.lanes<u64>(kDescriptorA(op))[0];
  product.b = warp.lanes<u64>(kDescriptorB(op))[0];
  product.accumulate = warp.mask(kAccumulate(op)) & 1;
  if (SharedMatrix::has_base_offset(product.a) || SharedMatrix::has_base_offset(product.b)) {
    report(warp, op, mask, detector::kUnsupported, product.b, "a matrix descriptor with a base offset");
    warp.run->stopped = true;
    return;
  }
  if (warp.run->options.races) {
    check_registers(warp, op, product.accumulate);
    check_sums(warp, op, product.accumulate);
    if (warp.index % kWarpgroup == 0) {
      if (!(kForm(op) & kRegistersOfA)) touch_operand(warp, op, product.a, kForm(op) & kColumnsOfA, 64);
      touch_operand(warp, op, product.b, kForm(op) & kRowsOfB, kN(op));
    }
  }
  own_registers(warp, op, 1);
  warp.open_products.push_back(product);
  count_issued(warp);
}

void execute(Warp* warps, const Product* products[kWarpgroup]) {
  Warp& warp = warps[0];
  if (warp.run->trace) return;
  const Product& product = *products[0];
  const Op& op = *product.op;
  const std::vector<u32>& lists = warp.run->program.lists;
  for (u32 i = 1; i < kWarpgroup; ++i) {
    const Product& other = *products[i];
    if (other.op == &op && other.a == product.a && other.b == product.b && other.accumulate == product.accumulate) continue;
    report(warps[i], op, kAllLanes, detector::kDivergent, 0, "the warps of a warpgroup issue different products",
           other.op->instruction);
    return;
  }
  ProductRegisters registers;
  for (u32 i = 0; i < kWarpgroup; ++i) registers.files[i] = warps[i].registers;
  registers.sums = &lists[op.list];
  registers.a = kForm(op) & kRegistersOfA ? &lists[op.list + sums_of(op)] : nullptr;
  const SharedView smem{warp.cta->smem.data(), kSharedBase, warp.cta->smem_end};
  const ProductForm form = form_of(op);
  if (warp.run->options.taint) [[unlikely]]
    taint_product(warp, form, product, registers);
  multiply(form, smem, product.a, product.b, registers, product.accumulate);
}

void release_registers(Warp& warp, const std::vector<Product>& products) {
  for (const Product& product : products) {
    own_registers(warp, *product.op, -1);
  }
}

u32 oldest(const Warp& warp) { return warp.product_number - static_cast<u32>(warp.product_groups.size()) + 1; }

// Executes the warpgroup's groups up to `number` that all its warps have committed; false if a warp has not.
bool complete_groups(Warp& warp, u32 number) {
  Warp* warps = warpgroup_of(warp);
  if (!warps) return true;
  while (!warp.product_groups.empty() && oldest(warp) <= number) {
    std::size_t size = 0;
    for (u32 i = 0; i < kWarpgroup; ++i) {
      if (warps[i].product_groups.empty()) return false;
      size = std::max(size, warps[i].product_groups.front().size());
    }
    for (std::size_t at = 0; at < size; ++at) {
      const Product* products[kWarpgroup];
      bool whole = true;
      for (u32 i = 0; i < kWarpgroup; ++i) {
        const std::vector<Product>& group = warps[i].product_groups.front();
        whole = whole && at < group.size();
        products[i] = whole ? &group[at] : nullptr;
      }
      if (!whole) {
        u32 longest = 0;
        while (warps[longest].product_groups.front().size() != size) ++longest;
        const Op& op = *warps[longest].product_groups.front().back().op;
        report(warp, op, kAllLanes, detector::kDivergent, 0, "the warps of a warpgroup commit different numbers of products");
        break;
      }
      execute(warps, products);
    }
    for (u32 i = 0; i < kWarpgroup; ++i) {
      std::vector<Product>& done = warps[i].product_groups.front();
      release_registers(warps[i], done);
      done.clear();
      if (warps[i].open_products.empty()) warps[i].open_products.swap(done);  // its storage serves the next group
      warps[i].product_groups.pop_front();
    }
    ++warp.run->events;
  }
  return true;
}

void fence(Warp& warp, const Op&, u32) {
  warp.product_fenced = true;
  std::fill(warp.register_dirty.begin(), warp.register_dirty.end(), 0);
}

void commit(Warp& warp, const Op&, u32) {
  warp.product_groups.push_back(std::move(warp.open_products));
  warp.open_products.clear();
  count_issued(warp);
  ++warp.product_number;
  ++warp.run->events;
  const Interleaving interleaving = warp.run->options.interleaving;
  if (interleaving == Interleaving::kEager || (interleaving == Interleaving::kRandom && warp.run->random() % 2)) {
    complete_groups(warp, warp.product_number);
  }
}

void wait(Warp& warp, const Op& op, u32) {
  const u32 pending = static_cast<u32>(std::clamp<i64>(op.imm, 0, warp.product_number));
  const u32 number = warp.product_number - pending;
  if (!complete_groups(warp, number)) {
    warp.waiting = true;
    return;
  }
  warp.acquire(warp.products(), number);
}

bool legal(const OpRecord& op) {
  const u32 n = kN(op), form = kForm(op);
  const u32 element = form & kElements;
  const bool halves = !(element & (kTf32Operands | kByteOperands));
  return n % 8 == 0 && n >= 8 && n <= 256 && std::popcount(element) <= 1 && !(element && form & kHalfSums) &&
         (halves || !(form & (kColumnsOfA | kRowsOfB)));
}

}  // namespace

void finish_products(Warp& warp) {
  const bool open = !warp.open_products.empty();
  if (!open && warp.product_groups.empty()) return;
  const std::vector<Product>& left = open ? warp.open_products : warp.product_groups.front();
  if (left.empty()) return;
  report(warp, *left.front().op, kAllLanes, detector::kWgmmaInFlight, 0,
         open ? "the warp ended with a product that was never committed"
              : "the warp ended with a product that was not waited for");
}

void note_tracked(Warp& warp, const Op& op, u32 index) {
  const Program& program = warp.run->program;
  if (!warp.run->options.races) return;
  bool busy = false;
  bool written = true;
  for (u32 slot : program.tracked_reads[index]) {
    busy = busy || warp.products_writing[slot / 32];
    written = written && warp.sums_written[slot / 32];
  }
  if (!written)
    report(warp, op, kAllLanes, detector::kUninitialisedRead, 0, "reads uninitialised registers", kNoInstruction, true);
  for (u32 slot : program.tracked_writes[index]) {
    busy = busy || warp.products_writing[slot / 32] || warp.products_reading[slot / 32];
    warp.register_dirty[slot / 32] = 1;
    if (!op.guard && warp.converged) warp.sums_written[slot / 32] = 1;
  }
  if (busy) {
    report(warp, op, kAllLanes, detector::kWgmmaInFlight, 0, "accesses a register of a wgmma that has not been waited for");
  }
}

void register_wgmma(Registry& to) {
  to.add("wgmma", wgmma, {kD, kA, kDescriptorA, kDescriptorB, kAccumulate, kN, kForm, kBytes}, legal);
  to.add("wgmma.fence", fence, {});
  to.add("wgmma.commit", commit, {});
  to.add("wgmma.wait", wait, {kPendingGroups});
}

}  // namespace emulator
