"""What the probes' outputs say, in words: which blocks of K were added how often, which elements stand for which. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sandbox.verification.line_maps import agreed_sources, describe_map, span
from sandbox.verification.probe_inputs import K_BLOCK, Operand
from sandbox.verification.wrong_outputs import lines_of, ranges

_MOST = 0.98  # of the outputs, where a few disagree
_PERIODS = (2, 4, 8, 16, 32, 64)  # of lines, by which elements may be permuted differently
_CLASSES, _EXAMPLES, _PARTS = 2, 3, 4
_CHUNK = 8  # elements of 16 bytes
_LINE = {"a": "row", "b": "column"}


@dataclass(frozen=True)
class Reads:
    """Elements of an operand that outputs were made of. Shape: all (outputs,).

    `line`, `k`: the wanted element, a row of A or a column of B, and its place along K; `found_line`, `found_k`: the element
    that was read.
    """

    operand: Operand
    line: np.ndarray
    k: np.ndarray
    found_line: np.ndarray
    found_k: np.ndarray

    def where(self, chosen: np.ndarray) -> "Reads":
        return Reads(self.operand, *(each[chosen] for each in (self.line, self.k, self.found_line, self.found_k)))


def counted(operand: Operand, blocks: np.ndarray, added: np.ndarray, k: int) -> list[str]:
    """Blocks of K that were not added exactly once.

    Shape: added (rows, columns), how many elements of its block an output has; blocks (columns,) for operand b, (rows,) for
    a, the block that a line of the operand holds.
    """
    sizes = np.minimum(K_BLOCK, k - blocks * K_BLOCK)
    share = added / (sizes[None, :] if operand == "b" else sizes[:, None])
    block = np.broadcast_to(blocks[None, :] if operand == "b" else blocks[:, None], added.shape)
    wrong = share != 1
    if not wrong.any():
        return []
    said = [f"{words} {_blocks(of, k)}" for words, of in _kinds(share, block, wrong)]
    return [f"{operand.upper()}: {'; '.join(said)}{_in(wrong, operand)}"]


def _kinds(share: np.ndarray, block: np.ndarray, wrong: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Blocks by what became of them, from the outputs in which they are wrong."""
    kinds = (
        ("not added: k", wrong & (share == 0)),
        ("added twice: k", wrong & (share == 2)),
        ("added in part: k", wrong & (share > 0) & (share < 1)),
        ("added too often: k", wrong & ((share > 1) & (share != 2))),
        ("with a sum that is no count: k", wrong & ~(share >= 0)),
    )
    for words, where in kinds:
        if where.any():
            yield words, np.unique(block[where])


def _blocks(blocks: np.ndarray, k: int) -> str:
    spans = [span(first * K_BLOCK, min((last + 1) * K_BLOCK, k) - 1) for first, last in ranges(blocks)]
    more = f" and {len(spans) - _PARTS} more ranges" if len(spans) > _PARTS else ""
    return ", ".join(spans[:_PARTS]) + more


def _in(wrong: np.ndarray, operand: Operand) -> str:
    """In which outputs, by the lines that do not choose the block."""
    lines = lines_of(np.asarray(wrong.any(axis=1 if operand == "b" else 0)))
    name = "rows" if operand == "b" else "columns"
    if lines.all:
        return f" (in all {name} of D)"
    return f" (in {name} {span(lines.first, lines.last)} of D)"


@dataclass(frozen=True)
class Told:
    """A map in words. `rank`: 0 where the words are all of it, 1 where a pattern was found for a part, 2 for examples."""

    words: str
    rank: int


def mapped(*reads: Reads) -> list[str]:
    """Elements that stand for others, by operand. Empty where each is the right one.

    A wrong element of one operand makes the probe of the other show a wrong place along K too, so only the operand with the
    simplest map is told; both where they are equally simple, since either explains the result then.
    """
    told = {each.operand: (each, _told(each)) for each in reads if _differs(each).any()}
    best = min((one.rank for _, one in told.values()), default=0)
    return [
        f"{operand.upper()} ({float(_differs(each).mean()):.0%} of the probed elements): {one.words}"
        for operand, (each, one) in told.items()
        if one.rank == best
    ]


def _differs(reads: Reads) -> np.ndarray:
    return np.asarray((reads.line != reads.found_line) | (reads.k != reads.found_k))


def _told(reads: Reads) -> Told:
    return _along_one(reads) or _along_both(reads) or Told(_examples(reads.where(_differs(reads))), 2)


def _along_one(reads: Reads) -> Told | None:
    """Where only the line, or only the k, of the elements is another."""
    line = _LINE[reads.operand]
    same_line, same_k = (
        float((wanted == found).mean()) >= _MOST for wanted, found in ((reads.line, reads.found_line), (reads.k, reads.found_k))
    )
    if same_k and not same_line:
        return _one(f"{line}s", reads.line, reads.found_line, "k", reads.k)
    if same_line and not same_k:
        return _one("k", reads.k, reads.found_k, line, reads.line)
    return None


def _one(name: str, wanted: np.ndarray, found: np.ndarray, other: str, beside: np.ndarray) -> Told | None:
    """A map of one index; by classes of the other index where it depends on that."""
    if said := _map(wanted, found):
        words, whole = said
        return Told(f"{name} {words}", 0 if whole else 1)
    for period in _PERIODS:
        classes = [
            (_map(wanted[at], found[at]), residue) for residue in range(period) if (at := beside % period == residue).any()
        ]
        if all(said is not None for said, _ in classes):
            shown = [f"{other} {residue} of every {period}: {name} {said[0]}" for said, residue in classes if said and said[0]]
            more = f"; {len(shown) - _CLASSES} more classes likewise" if len(shown) > _CLASSES else ""
            whole = all(said[1] for said, _ in classes if said)
            return Told("; ".join(shown[:_CLASSES]) + more + _swizzled(wanted, found, other), 0 if whole else 1)
    return None


def _swizzled(wanted: np.ndarray, found: np.ndarray, other: str) -> str:
    """A remark where pieces of 16 bytes or more keep together."""
    piece = _piece(wanted, found)
    if piece < _CHUNK:
        return ""
    said = f"; pieces of {piece} elements ({2 * piece} bytes) are exchanged by the {other}"
    return f"{said}, as where a swizzle is done on one side only, or two sides swizzle differently"


def _map(wanted: np.ndarray, found: np.ndarray) -> tuple[str, bool] | None:
    """A map in words, empty where it is the identity; None where the outputs of a line do not agree."""
    sources = agreed_sources(wanted, found)
    return describe_map(sources) if len(sources) >= _MOST * len(np.unique(wanted)) else None


def _piece(wanted: np.ndarray, found: np.ndarray) -> int:
    """The largest power of two, up to 64, in aligned pieces of which elements keep their places."""
    moved = int(np.bitwise_or.reduce(np.bitwise_xor(wanted, found)))
    return 64 if not moved else min(64, moved & -moved)


def _along_both(reads: Reads) -> Told | None:
    by_line, by_k = _map(reads.line, reads.found_line), _map(reads.k, reads.found_k)
    if not by_line or not by_k:
        return None
    whole = by_line[1] and by_k[1]
    return Told(f"{_LINE[reads.operand]}s {by_line[0]}; k {by_k[0]}", 0 if whole else 1)


def _examples(wrong: Reads) -> str:
    line, order = _LINE[wrong.operand], np.lexsort((wrong.k, wrong.line))
    chosen = order[np.linspace(0, len(order) - 1, min(_EXAMPLES, len(order))).astype(int)]
    said = [
        f"{line} {wrong.line[at]}, k {wrong.k[at]} holds {line} {wrong.found_line[at]}, k {wrong.found_k[at]}" for at in chosen
    ]
    return "; ".join(said)
