"""Where the knowledge base is kept: file versions and releases in SQLite, vectors in Chroma, the lexical index in folders."""

from knowledge.store.rows import Row
from knowledge.store.store import Store, open_store

__all__ = ["Row", "Store", "open_store"]
