"""What a worker of the indexing pool does with a file: split it, and find the words that each piece is searched by."""

from contract.knowledge import SplitFile
from indexer.split.split import SPLITTER as SPLIT
from indexer.split.split import split_file
from knowledge.lexical.analysis import ANALYSIS, analysed

# Part of every file version's key: where either changes, files are split and analysed anew.
SPLITTER = f"{SPLIT} {ANALYSIS}"


def split_and_analyse(path: str, data: bytes) -> SplitFile:
    """Raises: SourceError for a document that cannot be read."""
    return analysed(split_file(path, data))
