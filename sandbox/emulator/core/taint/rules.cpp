// How operations propagate taint of old contents: one rule for each handler, found by its name.
//
// A rule is executed before its operation, while source registers still hold what it reads; it writes shadows only.
#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "taint/rule.hpp"

namespace emulator {

namespace {

bool begins(std::string_view name, std::string_view with) { return name.substr(0, with.size()) == with; }
bool holds(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// cvt between integers extends or cuts off.
bool moves_integer(std::string_view name) {
  const std::size_t from = name.rfind('.') + 1;
  return begins(name, "cvt.u") && (name[from] == 'u' || name[from] == 's');
}

Rule registers_rule(std::string_view name, const Signature& bytes) {
  struct Named {
    std::string_view begins;
    Rule rule;
  };
  static const Named kNamed[] = {
      {"mov.pred", {.propagate = taint_move, .moved = kA}},
      {"mov.b", {.propagate = taint_move, .moved = kA}},
      {"pack.", {.propagate = taint_move, .moved = kA}},
      {"unpack.", {.propagate = taint_move, .moved = kA, .results = 16}},
      {"movmatrix.", {.propagate = taint_move, .moved = kA}},
      {"brev.", {.propagate = taint_move, .moved = kA}},
      {"shl.", {.propagate = taint_move, .moved = kA}},
      {"shr.", {.propagate = taint_move, .moved = kA}},
      {"bfe.", {.propagate = taint_move, .moved = kA}},
      {"bfi.", {.propagate = taint_move, .moved = kA | kB}},
      {"shf.", {.propagate = taint_move, .moved = kA | kB}},
      {"prmt.", {.propagate = taint_move, .moved = kA | kB}},
      {"selp.", {.propagate = taint_move, .moved = kA | kB}},
      {"slct.", {.propagate = taint_move, .moved = kA | kB}},
      {"vote.ballot", {.propagate = taint_move, .moved = kA}},
      {"shfl.", {.propagate = taint_shuffle, .moved = kA, .second = true}},
      {"and.", {.propagate = taint_bitwise, .truth = 0xC0}},
      {"or.", {.propagate = taint_bitwise, .truth = 0xFC}},
      {"xor.", {.propagate = taint_bitwise, .truth = 0x3C}},
      {"not.", {.propagate = taint_bitwise, .truth = 0x0F}},
      {"lop3.", {.propagate = taint_bitwise}},
      {"narrow.f16x2", {.propagate = taint_narrow_two}},
      {"narrow.bf16x2", {.propagate = taint_narrow_two}},
      {"vote.all", {.propagate = taint_vote, .truth = 0}},
      {"vote.any", {.propagate = taint_vote, .truth = 1}},
      {"vote.", {.propagate = taint_across}},
      {"match.all", {.propagate = taint_across, .second = true}},
      {"match.", {.propagate = taint_across}},
      {"redux.", {.propagate = taint_across}},
      {"elect", {.propagate = taint_clean, .second = true}},
      {"activemask", {.propagate = taint_clean}},
      {"addc.", {.propagate = taint_general, .second = true}},
      {"subc.", {.propagate = taint_general, .second = true}},
  };
  for (const Named& each : kNamed) {
    if (begins(name, each.begins)) return each.rule;
  }
  if (moves_integer(name)) return {.propagate = taint_move, .moved = kA};
  if (holds(name, "x2") && bytes.d == 4 && bytes.a == 4) return {.propagate = taint_halves};
  return {.propagate = taint_general};
}

// "mma.m16n8k16.f32.f16.f32": shape, type of D, of A and B, of C. Bytes of a type's element.
u8 element_bytes(std::string_view type) {
  return type == "b8" ? 1 : type == "f16" || type == "bf16" ? 2 : type == "f64" ? 8 : 4;
}

Rule product_rule(std::string_view name) {
  const auto part = [&](u32 index) {
    std::string_view left = name;
    for (; index; --index) left.remove_prefix(left.find('.') + 1);
    return left.substr(0, left.find('.'));
  };
  const auto number = [&](char axis) {
    const std::string_view shape = part(1);
    return static_cast<u32>(std::atoi(shape.data() + shape.find(axis) + 1));
  };
  Rule rule{.propagate = taint_multiply};
  const u32 bytes = element_bytes(part(3));
  rule.rows = static_cast<u8>(number('m') / kBlock);
  rule.columns = static_cast<u8>(number('n') / kBlock);
  rule.depth = static_cast<u8>(number('k') * bytes / (bytes == 8 ? 2 * kRowBytes : kRowBytes));
  rule.to_bytes = element_bytes(part(2));
  rule.from_bytes = element_bytes(part(4));
  rule.results = rule.rows * rule.columns * (rule.to_bytes > 2 ? 2 : 1);
  return rule;
}

Rule make_rule(std::string_view name, const Signature& bytes) {
  static const struct {
    std::string_view begins;
    Rule rule;
  } kEffects[] = {
      {"ldmatrix.", {.propagate = taint_load_fragment, .results = 4}},
      {"wmma.load.", {.propagate = taint_load_fragment, .results = 64}},
      {"ld.", {.propagate = taint_load, .results = 8}},
      {"st.async", {.propagate = taint_bulk, .effect = true}},
      {"st.", {.propagate = taint_store, .effect = true}},
      {"stmatrix.", {.propagate = taint_store, .effect = true}},
      {"wmma.store.", {.propagate = taint_store, .effect = true}},
      {"atom.exch.", {.propagate = taint_atomic, .moved = kA, .effect = true}},
      {"atom.", {.propagate = taint_atomic, .effect = true}},
      {"prefetch", {.propagate = taint_nothing, .effect = true}},
      {"discard", {.propagate = taint_discard, .effect = true}},
      {"cp.async.bulk.commit", {.propagate = taint_nothing, .effect = true}},
      {"cp.async.bulk.wait", {.propagate = taint_nothing, .effect = true}},
      {"cp.async.bulk.", {.propagate = taint_bulk, .effect = true}},
      {"cp.async.commit", {.propagate = taint_nothing, .effect = true}},
      {"cp.async.wait", {.propagate = taint_nothing, .effect = true}},
      {"cp.async.arrive", {.propagate = taint_mbarrier, .effect = true}},
      {"cp.async", {.propagate = taint_copy, .effect = true}},
      {"mbarrier.pending", {.propagate = taint_general}},
      {"mbarrier.", {.propagate = taint_mbarrier, .effect = true}},
      {"bar.warp", {.propagate = taint_nothing, .effect = true}},
      {"bar.", {.propagate = taint_barrier, .effect = true}},
      {"barrier.cluster.", {.propagate = taint_nothing, .effect = true}},
      {"fence", {.propagate = taint_nothing, .effect = true}},
      {"griddepcontrol.", {.propagate = taint_nothing, .effect = true}},
      {"nothing", {.propagate = taint_nothing}},
      {"nanosleep", {.propagate = taint_nothing}},
      {"wgmma.", {.propagate = taint_nothing, .effect = true}},
      {"wgmma", {.propagate = taint_warpgroup_product, .effect = true}},
  };
  for (const auto& each : kEffects) {
    if (begins(name, each.begins)) return each.rule;
  }
  return begins(name, "mma.") ? product_rule(name) : registers_rule(name, bytes);
}

const std::vector<Rule>& rules() {
  static const std::vector<Rule> all = [] {
    std::vector<Rule> made;
    for (const Registered& real : registry().all()) {
      made.push_back(make_rule(real.name, real.signature));
      made.back().real = &real;
    }
    return made;
  }();
  return all;
}

const Rule& rule_of(const Op& op) { return rules()[op.handler]; }

// What stands in place of every handler.
void run_tainted(Warp& warp, const Op& op, u32 mask) {
  const Rule& rule = rule_of(op);
  const u32 doubtful = op.guard ? warp.mask(shadow(warp, op.guard)) & mask : 0;
  if (op.members) reach_fault(warp, op, old_lanes(warp, op.members, 4) & mask, kControlFault);
  rule.propagate(warp, op, mask, rule);
  spoil(warp, op, rule, rule.effect ? 0 : doubtful);
  rule.real->run(warp, op, mask);
}

}  // namespace

Program with_taint(const Program& program) {
  Program made = program;
  for (Op& op : made.ops) {
    if (op.run) op.run = run_tainted;
  }
  const std::size_t count = program.lists.size();
  made.lists.resize(2 * count);
  const u32 away = shadow_offset(program);
  std::transform(program.lists.begin(), program.lists.end(), made.lists.begin() + static_cast<std::ptrdiff_t>(count),
                 [away](u32 slot) { return slot + away; });
  return made;
}

void taint_guard(Warp& warp, const Op& op, u32 lanes, u32 running) {
  const u32 doubtful = warp.mask(shadow(warp, op.guard)) & lanes;
  if (!doubtful) return;
  if (op.kind == kBranch || op.kind == kBranchIndexed || op.kind == kExit) return reach_fault(warp, op, doubtful, kBranchFault);
  const Rule& rule = rule_of(op);
  if (rule.effect) return reach_fault(warp, op, doubtful, kGuardFault);
  spoil(warp, op, rule, doubtful & ~running);
}

void taint_indexed_branch(Warp& warp, const Op& op, u32 lanes) {
  reach_fault(warp, op, old_lanes(warp, op.a, 4) & lanes, kBranchFault);
}

u32 keep_taint(Warp& warp, const Op& op, int lane, u64 source, u32 bytes) {
  u32 lost = old_lanes(warp, op.b, op.r == 4 ? 4 : 8);
  if (op.c) lost |= old_lanes(warp, op.c, 4);
  if (op.e) lost |= old_lanes(warp, op.e, kMask);
  CopyTaint old{};
  if (lost >> lane & 1) {
    old.fill(0xFF);
  } else if (bytes) {
    warp.run->shadowing = true;
    const u8* from = global_at(warp, op, lane, source, bytes, Access::kRead, nullptr);
    warp.run->shadowing = false;
    if (from) std::memcpy(old.data(), from, bytes);
  }
  if (!any_of(old.data(), old.size())) return 0;
  if (!copies_in_flight(warp)) warp.copy_taints.clear();
  if (warp.copy_taints.size() >= kMaxIssued) {
    warp.run->stop(detector::kUnsupported, "a warp with more copies of old contents in flight than the emulator keeps");
    return 0;
  }
  warp.copy_taints.push_back(old);
  return static_cast<u32>(warp.copy_taints.size());
}

}  // namespace emulator
