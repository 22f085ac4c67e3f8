"""The comparison as Markdown: `python -m benchmarks.peers.table FILE.json`."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from contract.evaluation import AUTOTUNED

# In the order of the columns; a peer without a time on any shape has a line instead.
PEERS = ("cublaslt-searched", "triton", "cutlass", "cuda-l2-paper", "cudal2-agent", "cudal2-agent, plain", "deepgemm")


def tables(result: dict[str, Any]) -> Iterator[str]:
    """One table for each element type, then a line for each peer that has no time."""
    for element in sorted({row["element"] for row in result["rows"]}, reverse=True):
        rows = [row for row in result["rows"] if row["element"] == element and row["autotuned_us"] is not None]
        present = [peer for peer in PEERS if any(peer in row["peers"] for row in rows)]
        if present:
            yield f"Speedup over {AUTOTUNED} in the same rounds, {element.upper()}:\n"
            yield from _table(rows, present)
            yield ""
    yield from (f"- {line}" for line in missing(result))


def missing(result: dict[str, Any]) -> Iterator[str]:
    """Why peers have no time, once for each reason, and the shapes that the run did not reach."""
    for peer in (AUTOTUNED, *PEERS):
        timed = [row["shape"] for row in result["rows"] if peer in row["peers"]]
        reasons: dict[str, list[str]] = {}
        for row in result["rows"]:
            if peer in row["failures"] and _applies(peer, row["element"]):
                reasons.setdefault(row["failures"][peer], []).append(row["shape"])
        for reason, shapes in reasons.items():
            where = ", ".join(shapes) if timed and len(shapes) <= 3 else f"{len(shapes)} shapes" if timed else "every shape"
            yield f"{peer}: {where}: {reason}"
    yield from (f"crash or hang: {line}" for line in result.get("troubles", ()))
    if result.get("left"):
        yield f"not reached in time: {', '.join(result['left'])}"


def _table(rows: Sequence[dict[str, Any]], present: Sequence[str]) -> Iterator[str]:
    yield _line(("shape", "AutoTuning, µs", *present))
    yield "|---" * (len(present) + 2) + "|"
    for row in rows:
        yield _line((row["shape"], f"{row['autotuned_us']:.2f}", *(_cell(row["peers"].get(peer)) for peer in present)))
    by_peer = {peer: [row["peers"][peer]["speedup"]["ratio"] for row in rows if peer in row["peers"]] for peer in present}
    yield _line(("geometric mean", "", *(f"**{geometric_mean(by_peer[peer]):.3f}**" for peer in present)))
    yield _line(("shapes, of these faster", "", *(f"{len(all_)}, {sum(one > 1 for one in all_)}" for all_ in by_peer.values())))


def _cell(found: dict[str, Any] | None) -> str:
    return "—" if found is None else f"{found['speedup']['ratio']:.3f}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _applies(peer: str, element: str) -> bool:
    """DeepGEMM is asked in BF16 only, the others where they are the subject, in FP16."""
    return peer == AUTOTUNED or (peer == "deepgemm") == (element == "bf16")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.table", description=__doc__)
    parser.add_argument("result", type=Path)
    print("\n".join(tables(json.loads(parser.parse_args().result.read_text(encoding="utf-8")))))
