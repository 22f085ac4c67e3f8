"""The work of an indexing process on one file: split it, and find the words by which each piece is searched."""

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.split import SPLITTER as SPLIT
from cudal2_agent.indexer.split.split import split_file
from cudal2_agent.knowledge.lexical.analysis import ANALYSIS, analysed

# Part of every file version's key: when either changes, files are split and analysed again.
SPLITTER = f"{SPLIT} {ANALYSIS}"


def split_and_analyse(path: str, data: bytes) -> SplitFile:
    """Raises: SourceError for a document that cannot be read."""
    return analysed(split_file(path, data))
