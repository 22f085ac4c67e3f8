"""The knowledge base: releases of code and documents, and the search over them.

- `search/`: answers a question with hits: scores of all pieces, and the selection of those shown.
- `lexical/`: the words of a piece and the index over them.
- `glossary/`: what engineers call things, and the definitions that answer.
- `embedding/`: texts as vectors.
- `store/`: file versions and releases in SQLite, vectors in Chroma, lexical indexes in folders.
- `notes/`: the documents that ship: one note per target, one per technique.
"""
