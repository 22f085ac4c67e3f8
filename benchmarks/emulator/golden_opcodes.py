"""Golden data: the outputs of a real GPU for inputs to every special opcode.

Run from the repository's root, on a machine with an sm_90 GPU:
    python -m benchmarks.emulator.golden_opcodes --out tests/sandbox/emulator/golden/data
Writes one NPZ file per family, and recorded.json. Each family runs in its own processes. A case that fails or hangs is
reported and ends its process; the family continues in a new one. A line says where an output differs from numpy.
"""

import argparse
import concurrent.futures
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.emulator.golden_device import GoldenDevice, Hung, describe_device
from benchmarks.harness import execute, script, stamp
from cudal2_agent.sandbox.cuda.driver import Fault
from tests.sandbox.emulator.golden.agreement import differences
from tests.sandbox.emulator.golden.case import Bytes, Case, Family
from tests.sandbox.emulator.golden.compiled import compile_family
from tests.sandbox.emulator.golden.families import families, family
from tests.sandbox.emulator.golden.store import Record, add_records, fingerprint, save

FAMILY_LIMIT_S = 60.0
CASE_LIMIT_S = 5.0
AT_ONCE = 4


def main() -> int:
    parser = script(__file__, __doc__, measures=True)
    parser.add_argument("--families", nargs="+", default=[one.name for one in families()])
    parser.add_argument("--child", help=argparse.SUPPRESS)  # a family, by the parent
    parser.add_argument("--skip", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        _run_child(family(arguments.child), arguments.out, arguments.skip)
        return 0
    started, device = time.monotonic(), describe_device()
    with tempfile.TemporaryDirectory() as scratch, concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        folders = {name: Path(scratch) / name for name in arguments.families}
        failures = list(pool.map(lambda name: _record(family(name), folders[name]), arguments.families))
        for name, folder in folders.items():
            save(arguments.out, family(name), dict(_outputs(family(name), folder)))
        made = stamp(__file__, arguments.commit)
        common = {**device, "commit": made["commit"], "date": made["date"]}
        add_records(arguments.out, {name: Record(fingerprint=fingerprint(family(name)), **common) for name in folders})
    total = sum(len(family(name).cases) for name in arguments.families)
    print(f"{sum(failures)} of {total} cases failed; {time.monotonic() - started:.0f} s")
    return 0


def _record(one: Family, folder: Path) -> int:
    """Run all cases of a family, restarting after every case that ends its process. Returns the number of failed cases."""
    folder.mkdir(parents=True)
    deadline = time.monotonic() + FAMILY_LIMIT_S
    at, reasons = 0, dict[str, str]()
    while at < len(one.cases) and time.monotonic() < deadline:
        said = _child(("--child", one.name, "--out", str(folder), "--skip", str(at)), deadline - time.monotonic())
        while at < len(one.cases) and _kept(folder, at).exists():
            at += 1
        if at < len(one.cases):
            reasons[one.cases[at].name] = f"failed, {said.strip()[-300:] or 'its process ended without output'}"
            at += 1
    for number, case in enumerate(one.cases):
        print(f"{case.name}: {reasons.get(case.name) or _verdict(case, _kept(folder, number))}", flush=True)
    return sum(not _kept(folder, number).exists() for number in range(len(one.cases)))


def _kept(folder: Path, at: int) -> Path:
    return folder / f"{at}.bin"


def _verdict(case: Case, kept: Path) -> str:
    if not kept.exists():
        return "failed, the time limit of the family was reached"
    given, before = case.buffers()
    return ", ".join(["ok", *differences(case, given, before, np.fromfile(kept, np.uint8))])


def _child(flags: Sequence[str], limit_s: float) -> str:
    """The output of a child until it ended or reached its time limit."""
    command = (sys.executable, "-m", "benchmarks.emulator.golden_opcodes", *flags)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as child:
        try:
            said, _ = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            said, _ = child.communicate()
    return said


def _run_child(one: Family, folder: Path, skip: int) -> None:
    """Run the cases of a family from `skip` on. A failed case ends the process, because its context is unusable."""
    device = GoldenDevice(_cubin(one, folder))
    for at, case in enumerate(one.cases[skip:], skip):
        try:
            result = device.run(case, *case.buffers(), CASE_LIMIT_S)
        except (Fault, Hung) as exc:
            print(exc, flush=True)
            os._exit(1)  # skips the cleanup of the driver, which would wait for a hanging kernel
        scratch = folder / "unfinished"
        scratch.write_bytes(result.tobytes())
        scratch.rename(_kept(folder, at))


def _cubin(one: Family, folder: Path) -> bytes:
    kept = folder / "family.cubin"
    if not kept.exists():
        kept.write_bytes(compile_family(one).cubin)
    return kept.read_bytes()


def _outputs(one: Family, folder: Path) -> Iterator[tuple[str, Bytes]]:
    for at, case in enumerate(one.cases):
        if _kept(folder, at).exists():
            yield case.name, np.fromfile(_kept(folder, at), np.uint8)


if __name__ == "__main__":
    execute(main)
