"""Splits text without a grammar into windows that end at blank lines. Never fails."""

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.assembly import assemble
from cudal2_agent.indexer.split.spans import Span
from cudal2_agent.indexer.split.text_lines import read_lines, windows


def split_plain(path: str, data: bytes) -> SplitFile:
    """Windows of at most 60 lines over the whole file."""
    lines = read_lines(data)
    spans = [Span(start, end, path, "text", (start, end)) for start, end in windows(lines, 1, len(lines))]
    return assemble(path, data, lines, spans)
