"""A minimal knowledge base: one header, one note, and an embedder without weights."""

from pathlib import Path

import pytest

from tests.doubles import WordEmbedder

RING = """#pragma once
namespace ring {

/// Waits until a buffer is empty again.
template <int Stages>
struct Producer {
  void acquire(int stage) { wait(stage); }
  void commit(int stage) { arrive(stage); }
};

/// Hands a buffer back to the loader.
inline void release_buffer(int stage) { arrive(stage); }

}  // namespace ring
"""
NOTE = "# Barriers\n\n## Release\n\nRelease a buffer after the last read of it.\n\n## Fences\n\nOne fence a batch.\n"


def plant(folder: Path) -> None:
    """Write Write Write `notes/` and the code of a release in `tree/`."""
    for path, text in (("notes/barriers.md", NOTE), ("tree/ring/ring.hpp", RING)):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def use_small_parts(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Use the folder's notes instead of the product's, and the embedder without weights."""
    for user in ("indexing", "knowledge_base"):
        monkeypatch.setattr(f"cudal2_agent.agent.index.{user}.NOTES_FOLDER", folder / "notes")
    monkeypatch.setattr("cudal2_agent.agent.index.knowledge_base.make_embedder", lambda *_: WordEmbedder())
