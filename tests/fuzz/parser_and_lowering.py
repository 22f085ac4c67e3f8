"""Coverage-guided fuzzing of the parser and the lowering: `python -m tests.fuzz.parser_and_lowering --minutes 10`.

Needs atheris. Only PtxError and Unsupported may be raised, and no text may take long. Every other text is kept in the folder,
one file per source of the exception, and the search continues.
"""

import argparse
import hashlib
import json
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(
    include=[
        "cudal2_agent.sandbox.emulator.ptx",
        "cudal2_agent.sandbox.emulator.lowering",
        "cudal2_agent.sandbox.emulator.lowering.program",
    ]
):
    from cudal2_agent.sandbox.emulator.lowering.program import lower
    from cudal2_agent.sandbox.emulator.ptx.module import Module, PtxError, Unsupported
    from cudal2_agent.sandbox.emulator.ptx.parser import parse

from tests.fuzz.mutation import mutate_text, vocabulary

LARGEST_BYTES = 48 * 1024
SLOW_S = 10.0
_STRUCTURED_SHARE = 0.6  # share of our mutants; libFuzzer makes the others


class Target:
    """The fuzz target with its counts."""

    def __init__(self, folder: Path, texts: list[str]) -> None:
        self._folder = folder
        self._words = vocabulary(texts)
        self.counts: Counter[str] = Counter()
        self.places: set[str] = set()

    def try_text(self, data: bytes) -> None:
        text, began = data.decode("utf-8", errors="replace"), time.monotonic()
        try:
            self.counts[read_and_lower(text)] += 1
        except Exception as exc:  # noqa: BLE001 (whatever leaves is the finding)
            self._keep(data, traceback.format_exc(), _place(exc))
        if time.monotonic() - began > SLOW_S:
            self._keep(data, f"{time.monotonic() - began:.1f} s", "slow")
        if self.counts.total() % 100 == 0:
            (self._folder / "counts.json").write_text(json.dumps(self.counts))

    def mutate(self, data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() > _STRUCTURED_SHARE:
            return atheris.Mutate(data, most)
        return mutate_text(data.decode("utf-8", errors="replace"), self._words, rng).encode()[:most]

    def _keep(self, data: bytes, words: str, place: str) -> None:
        self.counts["failures"] += 1
        if place in self.places:
            return
        self.places.add(place)
        name = hashlib.sha256(place.encode()).hexdigest()[:8]
        (self._folder / f"failure-{name}.ptx").write_bytes(data)
        (self._folder / f"failure-{name}.txt").write_text(words)
        print(f"failure {name}: {words.splitlines()[-1]} at {place}", flush=True)


def read_and_lower(text: str) -> str:
    """The stage that a text reaches. Raises: every exception that is a fault of the emulator."""
    try:
        module = parse(text)
    except PtxError:
        return "no PTX"
    except Unsupported:
        return "unsupported by the parser"
    return " and ".join(sorted({_lowered(module, name) for name in module.functions})) or "no entry"


def _lowered(module: Module, name: str) -> str:
    try:
        lower(module, name)
    except PtxError:
        return "no PTX"
    except Unsupported:
        return "unsupported"
    return "lowered"


def _place(exc: Exception) -> str:
    frames = traceback.extract_tb(exc.__traceback__)
    return f"{type(exc).__name__} {Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}"


def write_corpus(folder: Path) -> None:
    """Real PTX as seeds: both schedule families, the tests' kernels, and a golden case of every kernel."""
    from cudal2_agent.contract.settings.options import CompileOptions
    from cudal2_agent.sandbox.building.compiler import Compiler
    from tests.fuzz.seeds import all_seeds

    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        texts = {seed.ptx for seed in all_seeds(Compiler(CompileOptions(cache_dir=scratch)), cases_a_kernel=1)}
    for number, text in enumerate(sorted(texts)):
        if len(text) <= LARGEST_BYTES:
            (folder / f"seed-{number:04}").write_text(text)


def main() -> None:
    options = _options()
    folder = Path(options.folder or tempfile.mkdtemp(prefix="fuzz-parser-"))
    corpus = folder / "corpus"
    if not corpus.exists():
        write_corpus(corpus)
    texts = [path.read_text() for path in sorted(corpus.glob("seed-*"))]
    target = Target(folder, texts)
    print(f"{len(texts)} seeds; findings: {folder}", flush=True)
    arguments = [sys.argv[0], f"-max_len={LARGEST_BYTES}", f"-max_total_time={round(60 * options.minutes)}", "-timeout=120"]
    atheris.Setup([*arguments, "-rss_limit_mb=6000", str(corpus)], target.try_text, custom_mutator=target.mutate)
    atheris.Fuzz()


def _options() -> Any:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.parser_and_lowering", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--folder", help="of corpus and findings; a new one by default")
    return parser.parse_args()


if __name__ == "__main__":
    main()
