"""Differences between two releases: symbols and files, by area."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.knowledge import Piece

_AREA_FOLDERS = 3
SymbolInFile = tuple[str, str]  # (path, qualified name)
Digests = tuple[str, ...]


class AreaDiff(Record):
    """Changed symbols of one area, the first folders of a path. `moved`: unchanged symbols from another file."""

    area: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    moved: int = 0


class ReleaseDiff(Record):
    """Areas and files in order, without areas that are equal."""

    areas: tuple[AreaDiff, ...]
    files_added: tuple[str, ...]
    files_removed: tuple[str, ...]
    files_changed: tuple[str, ...]


def diff(old: Iterable[tuple[str, Piece, str]], new: Iterable[tuple[str, Piece, str]]) -> ReleaseDiff:
    """Compare the pieces of two releases: (path, piece, digest of its text). Shifted lines are not a difference."""
    before, after = _ReleaseSymbols(old), _ReleaseSymbols(new)
    added = [symbol for symbol in after.symbols if symbol not in before.symbols]
    removed = [symbol for symbol in before.symbols if symbol not in after.symbols]
    changed = [symbol for symbol, digests in after.symbols.items() if before.symbols.get(symbol, digests) != digests]
    left, arrived = _moves(before.symbols, removed, after.symbols, added)
    common = before.files.keys() & after.files.keys()
    return ReleaseDiff(
        areas=_areas(
            [each for each in added if each not in arrived], [each for each in removed if each not in left], changed, arrived
        ),
        files_added=tuple(sorted(after.files.keys() - before.files.keys())),
        files_removed=tuple(sorted(before.files.keys() - after.files.keys())),
        files_changed=tuple(sorted(path for path in common if before.files[path] != after.files[path])),
    )


def area_of(path: str) -> str:
    """The first folders of a path, such as `cutlass/gemm/collective`; `.` for a file at the root."""
    return "/".join(PurePosixPath(path).parts[:-1][:_AREA_FOLDERS]) or "."


class _ReleaseSymbols:
    """The symbols of a release with the sorted digests of their pieces, and its files with theirs."""

    def __init__(self, pieces: Iterable[tuple[str, Piece, str]]) -> None:
        symbols: dict[SymbolInFile, list[str]] = defaultdict(list)
        files: dict[str, list[str]] = defaultdict(list)
        for path, piece, text_digest in pieces:
            files[path].append(text_digest)
            if piece.symbol and piece.kind != "text":  # text belongs to no definition; it shows as a changed file
                symbols[path, piece.symbol].append(text_digest)
        self.symbols: Mapping[SymbolInFile, Digests] = {symbol: tuple(sorted(digests)) for symbol, digests in symbols.items()}
        self.files: Mapping[str, Counter[str]] = {path: Counter(digests) for path, digests in files.items()}


def _moves(
    before: Mapping[SymbolInFile, Digests],
    removed: Iterable[SymbolInFile],
    after: Mapping[SymbolInFile, Digests],
    added: Iterable[SymbolInFile],
) -> tuple[set[SymbolInFile], set[SymbolInFile]]:
    """The old and new symbols whose file alone changed. Each old symbol matches one new symbol."""
    old: dict[tuple[str, Digests], list[SymbolInFile]] = defaultdict(list)
    for symbol in sorted(removed, reverse=True):
        old[symbol[1], before[symbol]].append(symbol)
    left, arrived = set(), set()
    for symbol in sorted(added):
        if matches := old[symbol[1], after[symbol]]:
            left.add(matches.pop())
            arrived.add(symbol)
    return left, arrived


def _areas(
    added: Iterable[SymbolInFile],
    removed: Iterable[SymbolInFile],
    changed: Iterable[SymbolInFile],
    arrived: Iterable[SymbolInFile],
) -> tuple[AreaDiff, ...]:
    by_area: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for kind, symbols in (("added", added), ("removed", removed), ("changed", changed)):
        for path, symbol in symbols:
            by_area[area_of(path)][kind].add(symbol)
    moved = Counter(area_of(path) for path, _ in arrived)
    return tuple(
        AreaDiff(
            area=area,
            moved=moved[area],
            **{kind: tuple(sorted(symbols)) for kind, symbols in by_area[area].items()},
        )
        for area in sorted(by_area.keys() | moved.keys())
    )
