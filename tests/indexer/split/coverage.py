"""Invariants of every split file: pieces in order, no overlap, no line with text lost."""

from cudal2_agent.contract.records.knowledge import SplitFile


def covered(split: SplitFile) -> set[int]:
    """The lines of all pieces. Fails if two pieces overlap or a line is outside the file."""
    lines: list[int] = []
    for piece in split.pieces:
        assert piece.start_line <= piece.end_line
        assert piece.definition[0] <= piece.start_line, piece
        assert piece.definition[1] >= piece.end_line, piece
        lines.extend(range(piece.start_line, piece.end_line + 1))
    assert lines == sorted(set(lines))
    assert not lines or lines[-1] <= split.text.count("\n") + 1
    return set(lines)


def lost(split: SplitFile) -> list[int]:
    """Numbers of the lines with text outside all pieces."""
    held = covered(split)
    return [number for number, line in enumerate(split.text.split("\n"), 1) if line.strip() and number not in held]


def text_of(split: SplitFile, symbol: str) -> str:
    """The text of all pieces of a symbol."""
    lines = split.text.split("\n")
    found = [piece for piece in split.pieces if piece.symbol == symbol]
    assert found, [piece.symbol for piece in split.pieces]
    return "\n".join("\n".join(lines[piece.start_line - 1 : piece.end_line]) for piece in found)
