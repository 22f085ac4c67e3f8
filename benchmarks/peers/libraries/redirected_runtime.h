// Calls of the CUDA runtime that a published launcher makes, redirected to a stream of the caller; see redirected_runtime.cpp.
#pragma once
#include <cuda_runtime_api.h>

enum class Redirected { kWhole, kTimesItself, kNotLaunched };

// From here on every launch of this library goes to the stream, which may be capturing.
void begin_redirection(cudaStream_t stream);

// kTimesItself: the launcher read a clock while its launches were captured, so it chooses its kernel in every call.
// kNotLaunched: its last launch failed, or it launched nothing.
Redirected end_redirection();
