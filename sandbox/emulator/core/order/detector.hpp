// The kinds of findings. The names are stable, because stored evaluations hold them.
#pragma once

namespace emulator::detector {

constexpr const char* kAsyncRace = "async-race";
constexpr const char* kBarrierMisuse = "barrier-misuse";
constexpr const char* kClusterExit = "cluster-exit";
constexpr const char* kDeadlock = "deadlock";
constexpr const char* kDependency = "dependency";
constexpr const char* kDivergent = "divergent";
constexpr const char* kEndless = "endless";
constexpr const char* kGlobalOutOfBounds = "global-out-of-bounds";
constexpr const char* kGlobalRace = "global-race";
constexpr const char* kInputWritten = "input-written";
constexpr const char* kLocalOutOfBounds = "local-out-of-bounds";
constexpr const char* kMisaligned = "misaligned";
constexpr const char* kMissingProxyFence = "missing-proxy-fence";
constexpr const char* kMissingWgmmaFence = "missing-wgmma-fence";
constexpr const char* kParamOutOfBounds = "param-out-of-bounds";
constexpr const char* kSharedOutOfBounds = "shared-out-of-bounds";
constexpr const char* kSharedRace = "shared-race";
constexpr const char* kTensorMap = "tensor-map";
constexpr const char* kTransactionMismatch = "transaction-mismatch";
constexpr const char* kUninitialisedRead = "uninitialised-read";
constexpr const char* kWgmmaInFlight = "wgmma-in-flight";

// Faults of a kernel.
constexpr const char* kAll[] = {kAsyncRace,
                                kBarrierMisuse,
                                kClusterExit,
                                kDeadlock,
                                kDependency,
                                kDivergent,
                                kEndless,
                                kGlobalOutOfBounds,
                                kGlobalRace,
                                kInputWritten,
                                kLocalOutOfBounds,
                                kMisaligned,
                                kMissingProxyFence,
                                kMissingWgmmaFence,
                                kParamOutOfBounds,
                                kSharedOutOfBounds,
                                kSharedRace,
                                kTensorMap,
                                kTransactionMismatch,
                                kUninitialisedRead,
                                kWgmmaInFlight};

// Ends of a run that are not faults: a feature that the emulator lacks, and the deadline.
constexpr const char* kUnsupported = "unsupported";
constexpr const char* kDeadline = "deadline";

}  // namespace emulator::detector
