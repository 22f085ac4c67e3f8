"""Vectors of the glossary's sentences: shipped for the glossary as it ships, else made once and kept beside the index.

`python -m knowledge.ask_vectors` makes the shipped file anew after a change of the glossary; a test says when that is due.
"""

import os
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from contract.base import digest
from knowledge.embedding.embedder import Embedder, Vectors, unit_rows
from knowledge.embedding.minilm import MiniLm
from knowledge.glossary import GLOSSARY_FOLDER, Glossary, load_glossary

SHIPPED = GLOSSARY_FOLDER / "asks.npz"
_SCALE = 127.0  # a component of a unit vector in eight bits; the cosine moves by less than 0.002


def ask_vectors(glossary: Glossary, embedder: Embedder, folder: Path) -> Vectors:
    """Unit rows in the order of `glossary.asks`; `folder` keeps those of another glossary or model.

    Raises: KnowledgeError where they have to be made and the model is not installed.
    """
    key = _key(glossary, embedder)
    kept = folder / f"asks-{key}.npz"
    for path in (SHIPPED, kept):
        if (vectors := _read(path, key)) is not None:
            return vectors
    sentences = [ask for _, ask in glossary.asks]
    vectors = embedder.embed(sentences)
    try:
        _write(kept, key, vectors)
    except OSError:
        return vectors  # a folder that cannot be written costs the next start a few seconds, nothing else
    return vectors


def fresh(glossary: Glossary, embedder: Embedder) -> bool:
    """Whether the shipped vectors are those of this glossary and model."""
    return _read(SHIPPED, _key(glossary, embedder)) is not None


def _key(glossary: Glossary, embedder: Embedder) -> str:
    return digest([embedder.identity, [ask for _, ask in glossary.asks]])


def _read(path: Path, key: str) -> Vectors | None:
    try:
        with np.load(path) as data:
            if str(data["key"]) != key:
                return None
            return unit_rows(data["vectors"].astype(np.float32) / _SCALE)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error):
        return None


def _write(path: Path, key: str, vectors: Vectors) -> None:
    building = path.with_name(f"{path.stem}.{os.getpid()}.npz")
    np.savez_compressed(building, key=key, vectors=np.round(vectors * _SCALE).astype(np.int8))
    building.replace(path)


def main() -> None:
    glossary, embedder = load_glossary(), MiniLm()
    vectors = embedder.embed([ask for _, ask in glossary.asks])
    _write(SHIPPED, _key(glossary, embedder), vectors)
    print(f"{SHIPPED.name}: {len(vectors)} vectors of {embedder.identity}")


if __name__ == "__main__":
    main()
