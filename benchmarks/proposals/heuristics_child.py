"""Asks nvidia-matmul-heuristics, in a process of its own: freeing the objects of version 0.1.0.27 faults.

Reads {"gpu": ..., "layout": ..., "m": ..., "n": ..., "k": ..., "count": ...} and writes a list of configurations in
the library's order, or {"error": ...}. It is used as its callers do: target CUTLASS3, precision HSH, automatic tuning by its
performance model, and first of all its own discovery set for the layout and GPU.
"""

import json
import os
import sys
from typing import Any


def answer(request: dict[str, Any]) -> None:
    """Writes the answer while the library's objects live."""
    import nvMatmulHeuristics as library  # type: ignore[import-not-found]

    heuristics = library.NvMatmulHeuristicsInterface(
        library.NvMatmulHeuristicsTarget.CUTLASS3,
        precision="HSH",
        flags=library.NvMatmulHeuristicsFlags.PERF_MODEL_BASED_AUTO_TUNING,
    )
    gpu = heuristics.createHardwareDescriptor()
    heuristics.setHardwarePredefinedGpu(gpu, library.NvMatmulHeuristicsNvidiaGpu[request["gpu"]])
    layout = library.NvMatmulHeuristicsMatmulLayout[request["layout"]]
    if not heuristics.loadInternalDiscoverySet(layout, gpu):
        raise RuntimeError(f"it has no discovery set for {request['gpu']} and {request['layout']}")
    found = heuristics.get_with_mnk(request["m"], request["n"], request["k"], layout, request["count"], gpu)
    print(json.dumps([_plain(one["kernel"]) for one in found]), flush=True)
    os._exit(0)  # frees nothing


def _plain(kernel: Any) -> dict[str, int]:
    names = ("cta_tile_m", "cta_tile_n", "cta_tile_k", "stages", "split_k", "cluster_m", "cluster_n")
    return {name: int(getattr(kernel, name)) for name in names}


if __name__ == "__main__":
    try:
        answer(json.load(sys.stdin))
    except Exception as exc:  # noqa: BLE001 (the parent says what is missing)
        print(json.dumps({"error": f"{type(exc).__name__}: {exc}"}), flush=True)
        os._exit(0)
