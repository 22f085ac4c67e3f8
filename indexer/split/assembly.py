"""Assembles the record of a split file from its spans, with the archs, card and family of each piece."""

import hashlib
from collections.abc import Sequence

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.knowledge import Piece, SplitFile
from cudal2_agent.indexer.split.archs import archs_in, piece_archs
from cudal2_agent.indexer.split.card import area, card
from cudal2_agent.indexer.split.spans import Span

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
