"""The `Embedder` protocol of embedding models, and the functions that its implementations share."""

import hashlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cudal2_agent.contract.errors import KnowledgeError

Vectors = NDArray[np.float32]


class Embedder(Protocol):
    """An embedding model. The vector of a text depends on the text and the model only, not on the rest of the batch."""

    @property
    def identity(self) -> str:
        """Model, hash or revision of the weights, precision, maximum tokens. Vectors of two identities are never mixed."""
        ...

    @property
    def dimensions(self) -> int: ...
    def embed(self, texts: Sequence[str]) -> Vectors:
        """One row of unit length per text. Shape: (texts, dimensions). Raises: KnowledgeError."""
        ...


def packaged(package: str, file: str, remedy: str) -> Path:
    """A data file of an installed package, located without an import. Raises: KnowledgeError with the remedy."""
    spec = find_spec(package)
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    if path is None or not path.is_file():
        raise KnowledgeError(f"embedding model: {package}/{file} is not installed; {remedy}")
    return path


def fingerprint(path: Path) -> str:
    """The first 12 hex digits of a file's SHA-256. Raises: KnowledgeError for an unreadable file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:12]
    except OSError as exc:
        raise KnowledgeError(f"embedding model {path} cannot be read ({exc.strerror}); install it again") from exc


def encodable(texts: Sequence[str]) -> list[str]:
    """The texts with a question mark for each lone surrogate, which no tokenizer accepts."""
    return [text.encode("utf-8", "replace").decode("utf-8") for text in texts]


def unit_rows(vectors: Vectors) -> Vectors:
    """Rows scaled to unit length. A row of zeros (a text without a known token) becomes the first unit vector."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: Vectors = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    scaled[lengths[:, 0] == 0, 0] = 1.0
    return scaled


def batches_by_length(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Positions of texts, shortest first, in batches whose padded size is at most `max_tokens`."""
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and (len(batch) + 1) * lengths[position] > max_tokens:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
