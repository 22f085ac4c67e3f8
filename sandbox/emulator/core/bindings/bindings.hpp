// What each file of bindings adds to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace emulator {

void bind_declarations(nb::module_& module);  // enums, the record of an operation, handlers with their operands
void bind_program(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_run(nb::module_& module);
void bind_timing(nb::module_& module);  // traces of runs, and their replay

}  // namespace emulator
