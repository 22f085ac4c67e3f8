"""Texts as vectors.

- `embedder`: the `Embedder` protocol, and what its implementations share.
- `choice`: the embedder that a setting names.
- `static`: static token embeddings, the default.
- `minilm`: MiniLM on onnxruntime.
- `transformer`: any model of sentence-transformers.
"""
