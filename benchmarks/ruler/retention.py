"""What one launch can leave to the next on this GPU, and what a trusted sweep removes.

Run from the repository's root on a machine with a GPU: python -m benchmarks.ruler.retention --out FILE.json
Measures operands that stay in L2 under `evict_last`, words that survive in shared memory, local memory and registers, and
accesses to memory that is mapped read-only or not mapped.
"""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

import cupy
from cuda.bindings import driver

from benchmarks.harness import execute, script, stamp, write_json
from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.driver import DriverFault, call
from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from cudal2_agent.sandbox.cuda.timing.trusted_timing import TrustedTiming

MARK, KEY = 0x5EED1234, 0x0DDBA11
BLOCK = 1024


class Probes:
    def __init__(self, device: Device) -> None:
        self._device, self._chip = device, device.chip
        source = resources.files("benchmarks.ruler").joinpath("retention.cu").read_text()
        self._module = cupy.RawModule(code=source, options=("-std=c++17",))
        self._sink = cupy.zeros(1, dtype=cupy.uint32)
        self._smem_bytes = LIMITS[device.chip.arch].max_smem_per_block_bytes
        self._trusted = TrustedTiming(self._chip.sms, self._smem_bytes)

    def kernel(self, name: str, grid: int, block: int, arguments: tuple[Any, ...], smem: int = 0) -> None:
        function = self._module.get_function(name)
        if smem:
            function.max_dynamic_shared_size_bytes = smem
        function((grid,), (block,), arguments, shared_mem=smem)

    def timed_us(self, work: Callable[[], None]) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        self.kernel("hold", 1, 1, (cupy.uint64(300_000),))
        start.record()
        work()
        end.record()
        end.synchronize()
        return 1e3 * float(cupy.cuda.get_elapsed_time(start, end))

    def read(self, how: str, data: Any) -> Callable[[], None]:
        count = data.nbytes // 16
        return lambda: self.kernel(f"read_{how}", 8 * self._chip.sms, 512, (data, cupy.uint64(count), self._sink))

    # ---- L2 ----
    def retention(self, victim_bytes: int) -> dict[str, float]:
        """Share of a buffer that is still in L2 after each sweep, interpolated from its read time between cold and hot."""
        l2 = self._chip.l2_bytes
        victim = Mapping(victim_bytes, self._device.index, "victim").bytes()[:victim_bytes]
        other = cupy.empty(16 * l2, dtype=cupy.uint8)
        key = itertools.count(1)

        def written(multiple: float) -> Callable[[], None]:
            return lambda: self._trusted.sweep(other[: int(multiple * l2)], next(key))

        def streamed(how: str, multiple: float) -> Callable[[], None]:
            return self.read(how, other[: int(multiple * l2)])

        def demoted() -> None:
            self._trusted.demote(victim)

        def reset() -> None:
            call(driver.cuCtxResetPersistingL2Cache)

        sweeps: dict[str, tuple[Callable[[], None], ...]] = {
            "nothing": (),
            "read 1x": (streamed("normal", 1),),
            "read 3x": (streamed("normal", 3),),
            "read 8x": (streamed("normal", 8),),
            "read 16x": (streamed("normal", 16),),
            "write 2x": (written(2),),
            "write 8x": (written(8),),
            "read 4x evict_last": (streamed("evict_last", 4),),
            "reset": (reset,),
            "reset, write 2x": (reset, written(2)),
            "demote, write 2x": (demoted, written(2)),
            "reset, demote, write 2x": (reset, demoted, written(2)),
        }
        normal = self.read("normal", victim)
        cold_sweep = (streamed("evict_last", 4), reset, demoted, streamed("normal", 16), written(8))
        cold_us = self._median_us(cold_sweep, normal)
        hot_us = self._median_us((*cold_sweep, normal, normal), normal)
        found = {"cold_us": cold_us, "hot_us": hot_us}
        for policy in ("normal", "evict_last"):
            read = self.read(policy, victim)
            for name, sweep in sweeps.items():
                us = self._median_us((*cold_sweep, read, read, *sweep), normal)
                found[f"{policy}: {name}"] = round((cold_us - us) / (cold_us - hot_us), 3)
        return found

    def _median_us(self, before: Sequence[Callable[[], None]], work: Callable[[], None]) -> float:
        """Median device time of `work` after the steps in `before`. Unit: microseconds."""
        times = []
        for _ in range(7):
            for step in before:
                step()
            times.append(self.timed_us(work))
        return sorted(times)[3]

    # ---- on-chip memory ----
    def shared(self) -> dict[str, int]:
        words, sms = self._smem_bytes // 4, self._chip.sms
        arguments = (cupy.uint32(words), cupy.uint32(MARK))
        return self._surviving(
            words * sms,
            lambda: self.kernel("write_shared", sms, BLOCK, arguments, self._smem_bytes),
            lambda found: self.kernel("count_shared", sms, BLOCK, (*arguments, found), self._smem_bytes),
            lambda: self._trusted.scrub_chip(KEY),
        )

    def _surviving(
        self, words: int, write: Callable[[], None], count: Callable[[Any], None], scrub: Callable[[], None]
    ) -> dict[str, int]:
        """Words that the next kernel finds, without and with the timer's scrubbing in between."""
        found = cupy.zeros(2, dtype=cupy.uint64)
        write()
        count(found[:1])
        write()
        scrub()
        count(found[1:])
        return {"words": words, "survived": int(found[0]), "survived scrubbing": int(found[1])}

    def spread(self) -> dict[str, int]:
        """The number of SMs that a grid reaches with one CTA per SM that takes all shared memory."""
        seen = cupy.zeros(512, dtype=cupy.uint32)
        self.kernel("mark_sm", self._chip.sms, BLOCK, (seen,), self._smem_bytes)
        return {"sms": self._chip.sms, "reached": int((seen > 0).sum()), "most": int(seen.max())}

    def local(self) -> dict[str, int]:
        ctas = 2 * self._chip.sms
        return self._surviving(
            ctas * BLOCK * 1024,
            lambda: self.kernel("write_local", ctas, BLOCK, (cupy.uint32(MARK), self._sink, cupy.uint32(1))),
            lambda found: self.kernel("count_local", ctas, BLOCK, (cupy.uint32(MARK), found, cupy.uint32(1))),
            lambda: self._trusted.scrub_local(KEY, 4096),
        )

    def registers(self) -> dict[str, int]:
        ones = cupy.ones(64, dtype=cupy.uint32)
        return self._surviving(
            BLOCK * self._chip.sms,
            lambda: self.kernel("write_registers", self._chip.sms, BLOCK, (cupy.uint32(MARK), ones, self._sink)),
            lambda found: self.kernel("count_registers", self._chip.sms, BLOCK, (cupy.uint32(MARK), found)),
            lambda: self._trusted.scrub_chip(KEY),
        )


def _mapping_costs(device: Device) -> dict[str, int | str]:
    import time

    costs: dict[str, int | str] = {}
    for size in (2 << 20, 256 << 20, 4 << 30):
        for sealed in (False, True):
            start = time.perf_counter()
            mapping = Mapping(size, device.index, "probe", sealed=sealed)
            costs[f"{size >> 20} MiB{', sealed' * sealed}: map us"] = round(1e6 * (time.perf_counter() - start))
            costs[f"{size >> 20} MiB{', sealed' * sealed}: address"] = hex(mapping.pointer)
            mapping.close()
    return costs


_CHILD = """
import sys
from cudal2_agent.sandbox.cuda.device import Device
from cudal2_agent.sandbox.cuda.guard.mapping import Mapping
from benchmarks.ruler.retention import Probes
import cupy
device = Device(0); probes = Probes(device); mapping = Mapping(2 << 20, 0, "probe", sealed=True); mapping.writer().fill(0)
device.synchronize()
case = sys.argv[1]
print(hex(mapping.pointer), flush=True)
if case == "write read-only":
    probes.kernel("poke", 1, 1, (cupy.uint64(mapping.pointer),))
elif case == "write past end":
    probes.kernel("poke", 1, 1, (cupy.uint64(mapping.pointer + mapping.size_bytes + 64),))
elif case == "read 2 GB past end":
    probes.kernel("peek", 1, 1, (cupy.uint64(mapping.pointer + mapping.size_bytes + (2 << 30)), probes._sink))
elif case == "write before":
    probes.kernel("poke", 1, 1, (cupy.uint64(mapping.pointer - 4),))
elif case == "read read-only":
    probes.kernel("peek", 1, 1, (cupy.uint64(mapping.pointer), probes._sink))
elif case == "torch and cublas on it":
    import torch
    a = mapping.bytes()[: 2 * 256 * 256].view(cupy.float16).reshape(256, 256)
    t = torch.from_dlpack(a); print(float((t @ t).sum()))
try:
    device.synchronize(); print("no fault")
except Exception as exc:
    from cudal2_agent.sandbox.cuda.guard.fault_log import describe_fault
    print(exc, "|", describe_fault())
import os; os._exit(0)
"""


def _faults() -> dict[str, str]:
    """The error of the driver for each access that must fault, each in its own process, and what the kernel log adds."""
    cases = (
        "write read-only",
        "write past end",
        "read 2 GB past end",
        "write before",
        "read read-only",
        "torch and cublas on it",
    )
    told = {}
    for case in cases:
        ended = subprocess.run([sys.executable, "-c", _CHILD, case], capture_output=True, text=True, timeout=120, check=False)
        told[case] = (ended.stdout + ended.stderr[-300:]).strip().replace("\n", " | ")
    return told


def main() -> None:
    options = script(__file__, __doc__, measures=True).parse_args()
    device = Device(0)
    probes = Probes(device)
    result: dict[str, Any] = {
        **stamp(__file__, options.commit),
        "gpu": device.environment.gpu,
        "driver": device.environment.driver,
    }
    probing: dict[str, Callable[[], Any]] = {
        "shared memory": probes.shared,
        "one CTA an SM": probes.spread,
        "local memory": probes.local,
        "registers": probes.registers,
        "mapping": lambda: _mapping_costs(device),
        "faults": _faults,
        "L2, 8 MB read": lambda: probes.retention(8 << 20),
        "L2, 24 MB read": lambda: probes.retention(24 << 20),
    }
    for name, probe in probing.items():
        try:
            result[name] = probe()
        except DriverFault as fault:
            result[name] = str(fault)
        print(name, json.dumps(result[name], indent=1), flush=True)
        write_json(options.out, result)


if __name__ == "__main__":
    execute(main)
