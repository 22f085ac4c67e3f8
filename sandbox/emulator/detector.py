"""The names of the emulator's detectors, under which faults are reported and recorded.

Stored records are read without the core, so the names stand here as well; a test compares them with the core's.
"""

from enum import StrEnum


class Detector(StrEnum):
    """A kind of fault; names are stable, because stored evaluations hold them."""

    ASYNC_RACE = "async-race"
    BARRIER_MISUSE = "barrier-misuse"
    CLUSTER_EXIT = "cluster-exit"
    DEADLOCK = "deadlock"
    DEPENDENCY = "dependency"
    DIVERGENT = "divergent"
    ENDLESS = "endless"
    GLOBAL_OUT_OF_BOUNDS = "global-out-of-bounds"
    GLOBAL_RACE = "global-race"
    INPUT_WRITTEN = "input-written"
    LOCAL_OUT_OF_BOUNDS = "local-out-of-bounds"
    MISALIGNED = "misaligned"
    MISSING_PROXY_FENCE = "missing-proxy-fence"
    MISSING_WGMMA_FENCE = "missing-wgmma-fence"
    PARAM_OUT_OF_BOUNDS = "param-out-of-bounds"
    SHARED_OUT_OF_BOUNDS = "shared-out-of-bounds"
    SHARED_RACE = "shared-race"
    TENSOR_MAP = "tensor-map"
    TRANSACTION_MISMATCH = "transaction-mismatch"
    UNINITIALISED_READ = "uninitialised-read"
    WGMMA_IN_FLIGHT = "wgmma-in-flight"
