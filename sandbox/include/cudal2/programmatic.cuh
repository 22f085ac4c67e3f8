// Programmatic dependent launch (sm_90 and up). Both are no-ops in a kernel launched without it.
#pragma once

namespace cudal2 {

// Blocks until the preceding kernels have completed and their writes are visible. Before it no thread reads A, B or the
// workspace, or writes D or the workspace; a prefetch into L2 is no read.
__device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel start once every CTA has come here or ended; publishes no writes.
__device__ __forceinline__ void launch_dependents() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace cudal2
