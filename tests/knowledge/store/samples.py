"""A tiny model, files and releases for tests of the store."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cudal2_agent.contract.records.knowledge import Piece, Release, SplitFile, StoreCounts
from cudal2_agent.knowledge.embedding.embedder import Vectors
from cudal2_agent.knowledge.store import KnowledgeBase, open_store


class TinyModel:
    """Eight numbers from a text's hash, so equal texts have equal vectors. Records its requests."""

    def __init__(self, identity: str = "tiny-1", dimensions: int = 8) -> None:
        self.identity = identity
        self.dimensions = dimensions
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> Vectors:
        self.asked.extend(texts)
        rows = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            seed = hashlib.sha256((self.identity + text).encode()).digest()
            rows[row] = np.random.default_rng(int.from_bytes(seed[:8], "big")).standard_normal(self.dimensions)
        return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True), np.float32)


def split_file(path: str, count: int = 3, salt: str = "") -> SplitFile:
    """A file with `count` functions of two lines. Every third has no card and therefore no vector."""
    lines = [line for n in range(count) for line in (f"void f{n}() {{ // {path} {salt}", "}")]
    text = "\n".join(lines)
    pieces = tuple(
        Piece(
            start_line=2 * n + 1,
            end_line=2 * n + 2,
            symbol=f"ns::f{n}",
            kind="function",
            definition=(2 * n + 1, 2 * n + 2),
            card=f"card {n} of {path} {salt}" if n % 3 != 2 else "",
        )
        for n in range(count)
    )
    return SplitFile(path=path, sha256=hashlib.sha256(text.encode()).hexdigest(), splitter="test-1", text=text, pieces=pieces)


def release(name: str) -> Release:
    return Release(
        name=name, kind="code", version=name, origin=f"folder {name}", indexed_at="2026-01-01T00:00:00Z", files=0, pieces=0
    )


def quiet(_: StoreCounts) -> None:
    pass


def add(store: KnowledgeBase, name: str, splits: Sequence[SplitFile]) -> StoreCounts:
    counts = store.stage(splits, quiet)
    store.publish(release(name), {split.path: split.key for split in splits})
    return counts


def filled(folder: Path, name: str = "1.0", files: int = 4, model: TinyModel | None = None) -> None:
    """Create and close a store with one release of a few files."""
    with open_store(folder, model or TinyModel()) as store:
        add(store, name, [split_file(f"include/f{n}.hpp") for n in range(files)])


def indexed(store: KnowledgeBase) -> dict[int, str]:
    """Vector id by piece id, in the order of the store's lexical index."""
    with np.load(store.lexical_dir / "columns.npz") as columns:
        return dict(zip(columns["piece_id"].tolist(), columns["vector"].tolist(), strict=True))
