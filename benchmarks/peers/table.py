"""The comparison as Markdown: `python -m benchmarks.peers.table FILE.json`."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from benchmarks.harness import execute, script, shown, table
from cudal2_agent.contract.records.evaluation import AUTOTUNED

# In the order of the columns; a peer without a time on any shape has a line instead.
PEERS = ("cublaslt-searched", "triton", "cutlass", "cuda-l2-paper", "cudal2-agent", "cudal2-agent, plain", "deepgemm")
SUMMED = "†"


def tables(result: dict[str, Any]) -> Iterator[str]:
    """One table for each element type, then a line for each peer that has no time."""
    for element in sorted({row["element"] for row in result["rows"]}, reverse=True):
        rows = [row for row in result["rows"] if row["element"] == element and row["autotuned_us"] is not None]
        present = [peer for peer in PEERS if any(peer in row["peers"] for row in rows)]
        if present:
            yield f"Speedup over {AUTOTUNED} in the same rounds, {element.upper()}:\n"
            yield from _table(rows, present)
            yield ""
            yield from (f"- {line}" for line in remarks(rows, present))
    yield from (f"- {line}" for line in missing(result))


def remarks(rows: Sequence[dict[str, Any]], present: Sequence[str]) -> Iterator[str]:
    """What is wrong with outputs that were timed all the same, and which times are sums of kernels."""
    for peer in present:
        results = {row["shape"]: row["peers"][peer] for row in rows if peer in row["peers"]}
        yield from (f"{peer}, {shape}, wrong: {one['fault']}" for shape, one in results.items() if one.get("fault"))
        if summed := [shape for shape, one in results.items() if one.get("clock") == "kernels"]:
            yield f"{peer}: {SUMMED} sum of its kernels' durations, because no graph holds its launches: {', '.join(summed)}"


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
    judged = [peer for peer in present if any(row["peers"].get(peer, {}).get("fault") for row in rows)]
    cells = [_cells(row, present, judged) for row in rows]
    by_peer = {peer: [row["peers"][peer] for row in rows if peer in row["peers"]] for peer in present}
    cells.append(_summary("all shapes", by_peer.values(), judged))
    if judged:
        right = {peer: [one for one in all_ if not one.get("fault")] for peer, all_ in by_peer.items()}
        cells.append(_summary("shapes with right outputs", right.values(), judged))
    return table(("shape", "AutoTuning, µs", *present, *(f"{peer}: outputs" for peer in judged)), cells)


def _cells(row: dict[str, Any], present: Sequence[str], judged: Sequence[str]) -> tuple[str, ...]:
    ratios = (_cell(row["peers"].get(peer)) for peer in present)
    return (row["shape"], f"{row['autotuned_us']:.2f}", *ratios, *(_verdict(row["peers"].get(peer)) for peer in judged))


def _summary(name: str, columns: Iterable[Sequence[dict[str, Any]]], judged: Sequence[str]) -> tuple[str, ...]:
    """A row of geometric means, each with its number of shapes and with those that are faster."""
    cells = []
    for results in columns:
        ratios = [one["speedup"]["ratio"] for one in results]
        faster = sum(ratio > 1 for ratio in ratios)
        cells.append(f"**{geometric_mean(ratios):.3f}**, {faster} of {len(ratios)} faster" if ratios else shown(None))
    return (f"geometric mean, {name}", "", *cells, *("" for _ in judged))


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "—"
    return f"{found['speedup']['ratio']:.3f}{SUMMED if found.get('clock') == 'kernels' else ''}"


def _verdict(found: dict[str, Any] | None) -> str:
    if found is None:
        return "—"
    return "wrong" if found.get("fault") else "right"


def _applies(peer: str, element: str) -> bool:
    """DeepGEMM is asked in BF16 only, the others where they are the subject, in FP16."""
    return peer == AUTOTUNED or (peer == "deepgemm") == (element == "bf16")


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("result", type=Path)
    print("\n".join(tables(json.loads(parser.parse_args().result.read_text(encoding="utf-8")))))


if __name__ == "__main__":
    execute(main)
