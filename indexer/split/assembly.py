"""Assembles the record of a split file from its spans, with the archs, card and family of each piece."""

import hashlib
import re
from collections.abc import Sequence

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.indexer.split.card import area, card
from cudal2_agent.indexer.split.spans import Span

_KNOWN = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
_NAMED = re.compile(r"(?:(?<![A-Za-z0-9])(?:sm|SM)|Sm)_?(\d{2,3})[af]?(?![0-9])")


def archs_in(text: str) -> tuple[str, ...]:
    """Tags of the architectures that a text names, in ascending order."""
    named = {f"sm_{number}" for number in _NAMED.findall(text)}
    return tuple(tag for tag in _KNOWN if tag in named)


def piece_archs(of_path: tuple[str, ...], symbol: str, text: str) -> tuple[str, ...]:
    """The architectures of the path, else of the symbol, else the only one that the text names."""
    if of_path:
        return of_path
    if of_symbol := archs_in(symbol):
        return of_symbol
    of_text = archs_in(text)
    return of_text if len(of_text) == 1 else ()


SPLITTER = "syntax-5"  # part of every file version's key; change it when the same file is split differently


def assemble(
    path: str,
    data: bytes,
    lines: Sequence[str],
    spans: Sequence[Span],
    *,
    archs: tuple[str, ...] = (),
    guess_archs: bool = True,
) -> SplitFile:
    """The record of a file. `archs`: tags for the whole file; else those of its path and, if guessed, of each piece."""
    of_path = archs or archs_in(path)
    words = area(path)
    pieces: list[Piece] = []
    for index, span in enumerate(spans):
        text = "\n".join(lines[span.start - 1 : span.end])
        around = [spans[near].symbol for near in (index - 1, index + 1) if 0 <= near < len(spans)]
        tags = piece_archs(of_path, span.symbol, text) if guess_archs else of_path
        pieces.append(_piece(path, span, tags, card(span, words, text, around)))
    return SplitFile(
        path=path,
        sha256=hashlib.sha256(data).hexdigest(),
        splitter=SPLITTER,
        text="\n".join(lines),
        pieces=tuple(pieces),
    )


def _piece(path: str, span: Span, archs: tuple[str, ...], about: str) -> Piece:
    return Piece(
        start_line=span.start,
        end_line=span.end,
        symbol=span.symbol or path,
        kind=span.kind,
        definition=span.definition,
        archs=archs,
        card=about,
        family=digest([path, span.family, span.part], length=16) if span.family else "",
    )
