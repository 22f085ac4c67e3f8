// The core as Python sees it: declarations of its operations, programs, memory, runs, timing.
#include "bindings/bindings.hpp"

NB_MODULE(_core, module) {
  emulator::bind_declarations(module);
  emulator::bind_program(module);
  emulator::bind_memory(module);
  emulator::bind_run(module);
  emulator::bind_timing(module);
}
