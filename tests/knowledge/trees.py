"""A small invented library in two releases. The second one moves a barrier down and drops a file."""

from collections.abc import Mapping, Sequence

from cudal2_agent.agent.index.splitting import split_and_analyse
from cudal2_agent.contract.records.knowledge import Release
from cudal2_agent.knowledge.store import KnowledgeBase
from tests.knowledge.store.samples import quiet

_PIPELINE = """#pragma once
namespace ring {{

// Hands stages of the ring from the loader to those who multiply on {chip}.
struct Sm{target}Pipeline {{
  // The consumer gives a stage back once nobody reads it any more.
  void consumer_release(int stage) {{
    if (is_leader) {{ empty_barrier[stage].arrive(peer); }}
    count += 1;
  }}

  // The producer waits until the stage is empty.
  void producer_acquire(int stage, int phase) {{
    while (!empty_barrier[stage].try_wait(phase)) {{ backoff(); }}
    full_barrier[stage].expect(bytes);
  }}
  int count;
}};

}}  // namespace ring
"""

_BARRIER = """#pragma once
namespace ring {

// Counts arrivals; its phase flips when all have come.
struct PhaseBarrier {
  void arrive(int peer);
  bool try_wait(int phase) const { return flipped(phase); }
};

}  // namespace ring
"""

_SWIZZLE = """#pragma once
namespace tile {

// Exclusive-or of row bits into column bits, so that eight rows lie in different banks.
template <int Bits, int Base, int Shift>
struct XorFold {
  static int apply(int offset) { return offset ^ ((offset >> Shift) & mask); }
};

}  // namespace tile
"""

_GUIDE = """---
title: The ring library
archs: sm_90a
---
# The ring library

## Giving back a stage
A consumer gives a stage back with consumer_release when the last read of it is done.

## Banks
Fold row bits into column bits before you store a tile.
"""


def _big(statements: int) -> str:
    """A class that is longer than an excerpt, with a distinct method in the middle."""
    body = [f"  void step_{n}() {{\n    total += table[{n}] * factor;\n  }}\n" for n in range(statements)]
    body.insert(statements // 2, "  void needle_in_the_haystack() {\n    found = frobnicate(total);\n  }\n")
    return "namespace tile {\nstruct Haystack {\n" + "\n".join(body) + "};\n}\n"


FIRST = {
    "doc/guide.md": _GUIDE,
    "ring/barrier.hpp": _BARRIER,
    "ring/sm100_pipeline.hpp": _PIPELINE.format(target=100, chip="Blackwell"),
    "ring/sm90_pipeline.hpp": _PIPELINE.format(target=90, chip="Hopper"),
    "tile/haystack.hpp": _big(80),
    "tile/xor_fold.hpp": _SWIZZLE,
}
_LICENCE = "// One line.\n// Another.\n// And a third.\n"
SECOND = {**FIRST, "ring/barrier.hpp": _LICENCE + _BARRIER.replace("const {", "const noexcept {")}
del SECOND["tile/xor_fold.hpp"]


def take_in(store: KnowledgeBase, name: str, files: Mapping[str, str]) -> None:
    """Split, analyse, stage and publish in this process, as the indexer does."""
    splits = [split_and_analyse(path, text.encode()) for path, text in files.items()]
    store.stage(splits, quiet)
    store.publish(_release(name), {split.path: split.key for split in splits})


def _release(name: str) -> Release:
    return Release(
        name=name, kind="code", version=name, origin=f"folder {name}", indexed_at="2026-01-01T00:00:00Z", files=0, pieces=0
    )


def lines_of(files: Mapping[str, str], path: str, span: Sequence[int]) -> str:
    return "\n".join(files[path].split("\n")[span[0] - 1 : span[1]])
