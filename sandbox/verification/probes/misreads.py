"""What the probes' outputs say, in words: which blocks of K were added how often, which elements stand for which. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cudal2_agent.sandbox.verification.probes.line_maps import agreed_sources, describe_map, span
from cudal2_agent.sandbox.verification.probes.probe_inputs import K_BLOCK, Operand
from cudal2_agent.sandbox.verification.probes.wrong_outputs import MODULI, lines_of, ranges

_MOST = 0.98  # of the outputs, where a few disagree
_PERIODS = (2, 4, 8, 16, 32, 64)  # of lines, by which elements may be permuted differently
_CLASSES, _EXAMPLES, _PARTS = 2, 3, 4
_CHUNK = 8  # elements of 16 bytes
_WIDE = 0.75
_DENSE = 0.7  # of the lines of a class, that must be among the chosen
_BLOCKS = (8, 16, 32, 64)
_SHIFTED = 0.5  # of the wrong elements, that few shifts must explain
_LINE: dict[Operand, str] = {"a": "row", "b": "column"}
_OTHER: dict[Operand, Operand] = {"a": "b", "b": "a"}


@dataclass(frozen=True)
class Reads:
    """Elements of an operand that outputs were made of. Shape: all (outputs,).

    `line`, `k`: the wanted element, a row of A or a column of B, and its place along K; `found_line`, `found_k`: the element
    that was read. `beside`: the output's other line, a column of D for A, a row for B. `known`: the share of the probed
    outputs that were made of exactly one element; the others are left out.
    """

    operand: Operand
    line: np.ndarray
    k: np.ndarray
    found_line: np.ndarray
    found_k: np.ndarray
    beside: np.ndarray
    known: float = 1.0

    def where(self, chosen: np.ndarray) -> "Reads":
        kept = (each[chosen] for each in (self.line, self.k, self.found_line, self.found_k, self.beside))
        line, k, found_line, found_k, beside = kept
        return Reads(self.operand, line, k, found_line, found_k, beside, self.known)

    @property
    def wrong(self) -> np.ndarray:
        return np.asarray((self.line != self.found_line) | (self.k != self.found_k))


def counted(operand: Operand, blocks: np.ndarray, added: np.ndarray, k: int) -> tuple[str, bool]:
    """Blocks of K that were not added exactly once, in words, and whether each of them is missing or doubled as a whole.

    Shape: added (rows, columns), how many elements of its block an output has; blocks (columns,) for operand b, (rows,) for
    a, the block that a line of the operand holds.
    """
    sizes = np.minimum(K_BLOCK, k - blocks * K_BLOCK)
    share = added / (sizes[None, :] if operand == "b" else sizes[:, None])
    block = np.broadcast_to(blocks[None, :] if operand == "b" else blocks[:, None], added.shape)
    wrong = (share != 1) & np.isfinite(share)
    if not wrong.any():
        return "", True
    said = [f"{words} {_blocks(of, k)}" for words, of in _kinds(share, block, wrong)]
    whole = bool(np.isin(share[wrong], (0, 2)).all())
    return f"{operand.upper()}: {'; '.join(said)}{_in(wrong)}", whole


def _kinds(share: np.ndarray, block: np.ndarray, wrong: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Blocks by what became of them, from the outputs in which they are wrong."""
    kinds = (
        ("not added: k", wrong & (share == 0)),
        ("added twice: k", wrong & (share == 2)),
        ("added in part: k", wrong & (share > 0) & (share < 1)),
        ("added too often: k", wrong & ((share > 1) & (share != 2))),
        ("with a sum below zero: k", wrong & (share < 0)),
    )
    for words, where in kinds:
        if where.any():
            yield words, np.unique(block[where])


def _blocks(blocks: np.ndarray, k: int) -> str:
    spans = [span(first * K_BLOCK, min((last + 1) * K_BLOCK, k) - 1) for first, last in ranges(blocks)]
    more = f" and {len(spans) - _PARTS} more ranges" if len(spans) > _PARTS else ""
    return ", ".join(spans[:_PARTS]) + more


def _in(wrong: np.ndarray) -> str:
    """In which outputs. Lines that choose the block are named where wrong ones fill less than most of them."""
    parts = []
    for name, axis in (("rows", 1), ("columns", 0)):
        lines = lines_of(np.asarray(wrong.any(axis=axis)))
        if lines.last - lines.first + 1 < _WIDE * lines.of:
            parts.append(f"{name} {span(lines.first, lines.last)}")
    return f" (in {', '.join(parts)} of D)" if parts else " (in all of D)"


@dataclass(frozen=True)
class Told:
    """A map in words. `rank`: 0 where the words are all of it, 1 where they are most, 2 where they are examples."""

    words: str
    rank: int


def mapped(*reads: Reads) -> tuple[list[str], bool]:
    """Elements that stand for others, by operand, and whether the words say all of it. Empty where each is the right one.

    A wrong element of one operand makes the probe of the other see a wrong place along K, the same for all of its own lines,
    and no element or several where one is read twice. Such an operand is left out if the other one's elements do not look
    so. Of two that remain the simpler one is reported, or both where they are equally simple, since either explains the result.
    """
    wrong = [each for each in reads if each.wrong.any()]
    if len({each.known >= _MOST for each in wrong}) > 1:
        wrong = [each for each in wrong if each.known >= _MOST]
    causes = [each for each in wrong if not _follows(each)] or wrong
    told = [(each, _told(each)) for each in causes]
    best = min((one.rank for _, one in told), default=0)
    said = [
        f"{each.operand.upper()} ({float(each.wrong.mean()):.0%} of the probed elements): {one.words}"
        for each, one in told
        if one.rank == best
    ]
    return said, best == 0 and bool(said)


def _follows(reads: Reads) -> bool:
    """Whether what stands for an element is in its own line, and depends on the other operand's line alone."""
    if float((reads.line == reads.found_line).mean()) < _MOST:
        return False
    return len(agreed_sources(reads.beside, reads.found_k)) >= _MOST * len(np.unique(reads.beside))


def _told(reads: Reads) -> Told:
    for describe in (_transposed, _along_one, _along_both, _by_classes, _shifted):
        if (told := describe(reads)) is not None:
            return told
    return Told(_examples(reads.where(reads.wrong)), 2)


def _transposed(reads: Reads) -> Told | None:
    """Lines and k exchanged within square blocks."""
    for size in _BLOCKS:
        line, k = reads.line // size * size + reads.k % size, reads.k // size * size + reads.line % size
        if float(((reads.found_line == line) & (reads.found_k == k)).mean()) >= _MOST:
            words = f"{_LINE[reads.operand]}s and k are exchanged within each block of {size}x{size}: transposed"
            return Told(f"{words}, or not transposed where they should be", 0)
    return None


def _along_one(reads: Reads) -> Told | None:
    """Where only the line, or only the k, of the elements is another."""
    line = _LINE[reads.operand]
    same_line, same_k = (
        float((wanted == found).mean()) >= _MOST for wanted, found in ((reads.line, reads.found_line), (reads.k, reads.found_k))
    )
    if same_k and not same_line and (said := _map(reads.line, reads.found_line)):
        other = f"; {reads.operand.upper()} was read from other {line}s, or D stored to other {line}s"
        return Told(f"{line}s {said[0]}{other}", 0 if said[1] else 1)
    if same_line and not same_k and (said := _map(reads.k, reads.found_k)):
        return Told(f"k {said[0]}", 0 if said[1] else 1)
    return None


def _along_both(reads: Reads) -> Told | None:
    by_line, by_k = _map(reads.line, reads.found_line), _map(reads.k, reads.found_k)
    if not by_line or not by_k or not (by_line[0] and by_k[0]):
        return None
    whole = by_line[1] and by_k[1]
    return Told(f"{_LINE[reads.operand]}s {by_line[0]}; k {by_k[0]}", 0 if whole else 1)


def _by_classes(reads: Reads) -> Told | None:
    """Maps that depend on a residue: of the line, as those of swizzles do, of the other line of D, or of k."""
    line = _LINE[reads.operand]
    stored = f"{_LINE[_OTHER[reads.operand]]} of D"  # what changes with it is changed by the store
    for period in _PERIODS:
        for name, index in ((line, reads.line), (stored, reads.beside), ("k", reads.k)):
            classes = [(residue, index % period == residue) for residue in range(period)]
            of = [(residue, _class(reads.where(at))) for residue, at in classes if at.any()]
            if len(of) > 1 and all(said is not None for _, said in of):
                shown = [f"{name} {residue} of every {period}: {said[0]}" for residue, said in of if said and said[0]]
                more = f"; {len(shown) - _CLASSES} more classes likewise" if len(shown) > _CLASSES else ""
                whole = all(said[1] for _, said in of if said)
                by_store = "; so D's elements were exchanged as it was stored" if name == stored else ""
                return Told("; ".join(shown[:_CLASSES]) + more + _swizzled(reads) + by_store, 0 if whole else 1)
    return None


def _class(reads: Reads) -> tuple[str, bool] | None:
    """The maps of lines and k of some reads; None where one of them is no map."""
    by_line, by_k = _map(reads.line, reads.found_line), _map(reads.k, reads.found_k)
    if by_line is None or by_k is None:
        return None
    said = [f"{name} {words}" for name, (words, _) in ((f"{_LINE[reads.operand]}s", by_line), ("k", by_k)) if words]
    return ", ".join(said), by_line[1] and by_k[1]


def _swizzled(reads: Reads) -> str:
    """A remark where pieces of 16 bytes or more keep together along one index."""
    for name, wanted, found in (
        ("k", reads.k, reads.found_k),
        (f"{_LINE[reads.operand]}s", reads.line, reads.found_line),
    ):
        piece = _piece(wanted, found)
        if piece >= _CHUNK and bool((wanted != found).any()):
            said = f"; pieces of {piece} elements ({2 * piece} bytes) along {name} are exchanged"
            return f"{said}, as where a swizzle is done on one side only, or two sides swizzle differently"
    return ""


def _shifted(reads: Reads) -> Told | None:
    """Rectangles of elements that stand together somewhere else."""
    wrong = reads.where(reads.wrong)
    steps = np.stack([wrong.found_line - wrong.line, wrong.found_k - wrong.k], axis=1)
    _, of, counts = np.unique(steps, axis=0, return_inverse=True, return_counts=True)
    most = np.argsort(-counts)[:_PARTS]
    if counts[most].sum() < _SHIFTED * len(steps):
        return None
    line, said = _LINE[reads.operand], []
    for kind in most:
        at = wrong.where(of.reshape(-1) == kind)
        lines, ks = _among(at.line, reads.line), _among(at.k, reads.k)
        if "every" in lines + ks:
            away = [_away(int(found[0] - wanted[0]), name) for wanted, found, name in _both(at, f"{line}s")]
            said.append(f"{line}s {lines} at k {ks} hold what belongs {' and '.join(filter(None, away))}")
        else:
            others = [_among(found, found) for found in (at.found_line, at.found_k)]
            said.append(f"{line}s {lines} hold {others[0]}, for k {ks} those of k {others[1]}")
    share = float(counts[most].sum()) / len(steps)
    return Told("; ".join(said) + (f"; and other shifts ({1 - share:.0%} of the wrong elements)" if share < 1 else ""), 1)


def _both(reads: Reads, line: str) -> Iterator[tuple[np.ndarray, np.ndarray, str]]:
    yield reads.line, reads.found_line, line
    yield reads.k, reads.found_k, "k"


def _away(step: int, name: str) -> str:
    """How far away an element was read; empty for no step."""
    return f"{abs(step)} {name} {'further on' if step > 0 else 'further back'}" if step else ""


def _among(chosen: np.ndarray, probed: np.ndarray) -> str:
    """Which of the probed lines were chosen: a range, within a period where that says more."""
    lines, everything = np.unique(chosen), np.unique(probed)
    for modulus in MODULI:
        residues = np.unique(lines % modulus)
        of_class = everything[np.isin(everything % modulus, residues)]
        periods = len(np.unique(lines // modulus))
        if periods > 1 and len(residues) < len(np.unique(everything % modulus)) and len(lines) >= _DENSE * len(of_class):
            spans = ", ".join(span(first, last) for first, last in ranges(residues))
            return f"{spans} of every {modulus}"
    return span(int(lines[0]), int(lines[-1]))


def _map(wanted: np.ndarray, found: np.ndarray) -> tuple[str, bool] | None:
    """A map in words, empty where it is the identity; None where the outputs of a line do not agree."""
    sources = agreed_sources(wanted, found)
    return describe_map(sources) if len(sources) >= _MOST * len(np.unique(wanted)) else None


def _piece(wanted: np.ndarray, found: np.ndarray) -> int:
    """The largest power of two, up to 64, in aligned pieces of which elements keep their places."""
    moved = int(np.bitwise_or.reduce(np.bitwise_xor(wanted, found)))
    return 64 if not moved else min(64, moved & -moved)


def _examples(wrong: Reads) -> str:
    line, order = _LINE[wrong.operand], np.lexsort((wrong.k, wrong.line))
    chosen = order[np.linspace(0, len(order) - 1, min(_EXAMPLES, len(order))).astype(int)]
    said = [
        f"{line} {wrong.line[at]}, k {wrong.k[at]} holds {line} {wrong.found_line[at]}, k {wrong.found_k[at]}" for at in chosen
    ]
    return "; ".join(said)
