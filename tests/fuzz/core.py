"""Runs mutants through the core for some minutes: `python -m tests.fuzz.core --minutes 10 --core build/_core….so`.

A worker process runs one mutant after another, preferably with a core built under sanitizers (EMULATOR_SANITIZE). If the
worker dies, its last mutant is kept with its output, and a new worker continues with the next one.
`--only N` runs one mutant again.
"""

import argparse
import importlib.util
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ADDRESS_SPACE_BYTES = 16 * 1024**3  # memory of workers without sanitizers, as the emulator's worker has
RESIDENT_MB = 6000  # memory of workers with sanitizers, which reserve a large address space
SLOW_S = 30.0  # a slower mutant is reported
_MODULE = "cudal2_agent.sandbox.emulator._core"


def main() -> int:
    options = _options()
    if options.worker:
        return work(options)
    folder = Path(options.folder or tempfile.mkdtemp(prefix="fuzz-core-"))
    folder.mkdir(parents=True, exist_ok=True)
    corpus = folder / "seeds.pickle"
    if not corpus.exists():
        _compile(corpus)
    print(f"seeds and findings: {folder}", flush=True)
    return drive(options, folder)


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.core", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--core", type=Path, help="a _core….so to load instead of the installed one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--only", type=int, help="try this mutant and no other")
    parser.add_argument("--folder", help="of seeds and findings; a new one by default")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _compile(corpus: Path) -> None:
    from cudal2_agent.contract.settings.options import CompileOptions
    from cudal2_agent.sandbox.building.compiler import Compiler
    from tests.fuzz.seeds import all_seeds

    with tempfile.TemporaryDirectory() as scratch:
        seeds = all_seeds(Compiler(CompileOptions(cache_dir=scratch)))
    corpus.write_bytes(pickle.dumps(seeds))
    print(f"{len(seeds)} seeds", flush=True)


# ---- the parent -------------------------------------------------------------------------------------------------------------
def drive(options: Any, folder: Path) -> int:
    """Run workers until the time is over; the exit code is 1 if one failed."""
    end = time.monotonic() + 60 * options.minutes
    number, failures, total = options.first, 0, Counter[str]()
    began = time.monotonic()
    while number is not None and time.monotonic() < end:
        left = (end - time.monotonic()) / 60
        again = ["--only", str(options.only)] if options.only is not None else []
        command = [sys.executable, "-m", "tests.fuzz.core", "--worker", "--folder", str(folder), "--seed", str(options.seed)]
        command += ["--first", str(number), "--minutes", str(left), *again]
        command += ["--core", str(options.core.resolve())] if options.core else []
        (folder / "state.json").write_text("{}")
        with (folder / "stderr.txt").open("w+") as said:
            code = subprocess.call(command, env=_environment(options.core), stderr=said)
            said.seek(0)
            words = said.read()
        state = json.loads((folder / "state.json").read_text() or "{}")
        total.update(state.get("counts", {}))
        if code == 0:
            break
        failures += 1
        at = state.get("number", number)
        (folder / f"failure-{at}.txt").write_text(words)
        print(f"mutant {at} ended the worker ({code}): {_gist(words)}", flush=True)
        number = None if options.only is not None else at + 1
    took = time.monotonic() - began
    print(f"{took:.0f} s: {dict(total)}; {total['runs'] / took:.1f} runs a second; {failures} failures")
    return 1 if failures else 0


def _gist(words: str) -> str:
    lines = [line for line in words.splitlines() if "runtime error" in line or "ERROR: " in line or "SUMMARY" in line]
    return (lines or words.splitlines()[-1:] or ["nothing was said"])[0][:300]


def _environment(core: Path | None) -> dict[str, str]:
    """The environment that loads sanitizers before Python; leaks of Python itself are ignored."""
    environment = dict(os.environ)
    if core is not None and b"libasan.so" in core.read_bytes():
        libraries = [_library(name) for name in ("libasan.so", "libubsan.so", "libstdc++.so")]
        environment["LD_PRELOAD"] = " ".join(libraries)
        environment["ASAN_OPTIONS"] = f"detect_leaks=0:allocator_may_return_null=1:hard_rss_limit_mb={RESIDENT_MB}"
        environment["UBSAN_OPTIONS"] = "print_stacktrace=1"
    return environment


def _library(name: str) -> str:
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


# ---- the worker -------------------------------------------------------------------------------------------------------------
def work(options: Any) -> int:
    """Run mutants from `--first` on; an unexpected exception ends the process."""
    if options.core is not None:
        _load(options.core)
    from tests.fuzz.mutation import vocabulary
    from tests.fuzz.trial import Mutants, attempt

    folder = Path(options.folder)
    if "LD_PRELOAD" not in os.environ:
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    seeds = pickle.loads((folder / "seeds.pickle").read_bytes())
    mutants = Mutants(seeds, vocabulary(seed.ptx for seed in seeds), options.seed)
    counts, number = Counter[str](), options.only if options.only is not None else options.first
    end = time.monotonic() + 60 * options.minutes
    state = os.open(folder / "state.json", os.O_RDWR | os.O_CREAT)
    while time.monotonic() < end:
        text = json.dumps({"number": number, "counts": counts}).encode()
        os.ftruncate(state, 0)
        os.pwrite(state, text, 0)
        began = time.monotonic()
        tried = attempt(*mutants.draw(number))
        took = time.monotonic() - began
        if took > SLOW_S:
            print(f"mutant {number} took {took:.1f} s", flush=True)
        counts.update([tried.fate.value])
        counts["runs"] += tried.runs
        counts["with findings"] += bool(tried.findings)
        number += 1
        if options.only is not None:
            print(tried)
            break
    os.pwrite(state, json.dumps({"number": number, "counts": counts}).encode(), 0)
    return 0


def _load(path: Path) -> None:
    """Make the emulator import this build of its core."""
    import cudal2_agent.sandbox.emulator

    spec = importlib.util.spec_from_file_location(_MODULE, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    cudal2_agent.sandbox.emulator._core = module


if __name__ == "__main__":
    sys.exit(main())
