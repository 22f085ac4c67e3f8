"""What a release has that another had not: symbols and files, by area."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from contract.base import Record
from contract.knowledge import Piece

_AREA_FOLDERS = 3
Symbol = tuple[str, str]  # path and qualified name
Digests = tuple[str, ...]


class AreaDiff(Record):
    """Symbols of one area (the first folders of a path); `moved` counts those that came unchanged from another file."""

    area: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    moved: int = 0


class ReleaseDiff(Record):
    """Areas and files in order; an area without a difference is left out."""

    areas: tuple[AreaDiff, ...]
    files_added: tuple[str, ...]
    files_removed: tuple[str, ...]
    files_changed: tuple[str, ...]


def diff(old: Iterable[tuple[str, Piece, str]], new: Iterable[tuple[str, Piece, str]]) -> ReleaseDiff:
    """Compare the pieces of two releases: (path, piece, digest of its text); lines that only shifted are no difference."""
    before, after = _Contents(old), _Contents(new)
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
    """`cutlass/gemm/collective` of a file under it, however deep; `.` for a file at the root."""
    return "/".join(PurePosixPath(path).parts[:-1][:_AREA_FOLDERS]) or "."


class _Contents:
    """A release's symbols with the texts of all their pieces as one sorted set, and its files with theirs."""

    def __init__(self, pieces: Iterable[tuple[str, Piece, str]]) -> None:
        symbols: dict[Symbol, list[str]] = defaultdict(list)
        files: dict[str, list[str]] = defaultdict(list)
        for path, piece, text_digest in pieces:
            files[path].append(text_digest)
            if piece.symbol and piece.kind != "text":  # text belongs to no definition; the file tells of it
                symbols[path, piece.symbol].append(text_digest)
        self.symbols: Mapping[Symbol, Digests] = {symbol: tuple(sorted(digests)) for symbol, digests in symbols.items()}
        self.files: Mapping[str, Counter[str]] = {path: Counter(digests) for path, digests in files.items()}


def _moves(
    before: Mapping[Symbol, Digests], removed: Iterable[Symbol], after: Mapping[Symbol, Digests], added: Iterable[Symbol]
) -> tuple[set[Symbol], set[Symbol]]:
    """Where symbols that only changed their file were, and where they are; each old place answers for one new place."""
    places: dict[tuple[str, Digests], list[Symbol]] = defaultdict(list)
    for place in sorted(removed, reverse=True):
        places[place[1], before[place]].append(place)
    left, arrived = set(), set()
    for place in sorted(added):
        if candidates := places[place[1], after[place]]:
            left.add(candidates.pop())
            arrived.add(place)
    return left, arrived


def _areas(
    added: Iterable[Symbol], removed: Iterable[Symbol], changed: Iterable[Symbol], arrived: Iterable[Symbol]
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
