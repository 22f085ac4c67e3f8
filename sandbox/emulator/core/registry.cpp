#include <utility>

#include "op.hpp"

namespace emulator {

namespace {

void add(Signature& signature, const Operand& operand) {
  switch (operand.field) {
    case Field::kD:
      signature.d = operand.bytes;
      break;
    case Field::kA:
      signature.a = operand.bytes;
      break;
    case Field::kB:
      signature.b = operand.bytes;
      break;
    case Field::kC:
      signature.c = operand.bytes;
      break;
    case Field::kE:
      signature.e = operand.bytes;
      break;
    case Field::kList:
      signature.list = operand.bytes;
      signature.minimum = static_cast<u8>(signature.minimum + operand.minimum);
      break;
    default:
      break;
  }
}

}  // namespace

void Registry::add(std::string name, Handler run, std::vector<Operand> operands, Legal legal) {
  Signature signature;
  for (const Operand& operand : operands) emulator::add(signature, operand);
  entries_.push_back({std::move(name), run, signature, legal, std::move(operands)});
}

const Registry& registry() {
  static const Registry all = [] {
    Registry made;
    register_integer(made);
    register_float(made);
    register_convert(made);
    register_warp(made);
    register_memory(made);
    register_atomics(made);
    register_matrix(made);
    register_wmma(made);
    register_mma(made);
    register_wgmma(made);
    register_copy(made);
    register_bulk_load(made);
    register_bulk_store(made);
    register_prefetch(made);
    register_remote_store(made);
    register_named_barrier(made);
    register_cluster_barrier(made);
    register_mbarrier(made);
    register_fence(made);
    return made;
  }();
  return all;
}

}  // namespace emulator
