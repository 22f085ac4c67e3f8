// Programmatic dependent launch (sm_90 and up). Both are no-ops in a kernel launched without it.
#pragma once

namespace cudal2 {

// Blocks until every kernel this one depends on has completed and its writes are visible. Nothing that an earlier kernel
// writes may be read, and nothing that it reads may be written, before this.
__device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel start its prologue once every CTA has come here or ended; says nothing about this kernel's writes.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace cudal2
