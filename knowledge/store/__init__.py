"""The storage of the knowledge base: file versions and releases in SQLite, vectors in Chroma, lexical indexes in folders.

- `store`: the knowledge base, open for reading or writing.
- `database`: the SQLite file: one writer, readers with a snapshot, translated errors.
- `tables`: its tables.
- `rows`: pieces as rows.
- `staging`: split files as rows and documents, in durable batches, and their releases as rows.
- `vectors`: vectors in Chroma.
- `reembedding`: vectors for new documents, and for all documents with another model.
- `generations`: generations of the lexical index.
- `lock`: the write lock.
- `integrity`: consistency checks.
"""

from cudal2_agent.knowledge.store.rows import Row
from cudal2_agent.knowledge.store.store import KnowledgeBase, open_store

__all__ = ["KnowledgeBase", "Row", "open_store"]
