#include "op.hpp"

namespace emulator {

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
    register_mma(made);
    register_wgmma(made);
    register_copy(made);
    register_bulk(made);
    register_barrier(made);
    return made;
  }();
  return all;
}

}  // namespace emulator
