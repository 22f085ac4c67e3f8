"""Static token embeddings of the package wordllama: the mean of a text's token vectors, 256 dimensions, very fast."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.embedding.embedder import Vectors, encodable, fingerprint, packaged, unit_rows

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENS = 512
_DIMENSIONS = 256
_REMEDY = "pip install wordllama"


class StaticModel:
    """An `Embedder` with wordllama's files. The package's own loader is not used: it needs compiled code and a downloader."""

    dimensions = _DIMENSIONS

    @cached_property
    def identity(self) -> str:
        weights = packaged("wordllama", "weights/l2_supercat_256.safetensors", _REMEDY)
        return f"wordllama l2_supercat 256 {fingerprint(weights)} {MAX_TOKENS} tokens"

    def embed(self, texts: Sequence[str]) -> Vectors:
        vectors = np.zeros((len(texts), _DIMENSIONS), np.float32)
        encoded = self._tokenizer.encode_batch(encodable(texts), add_special_tokens=False)
        for row, encoding in enumerate(encoded):
            if encoding.ids:
                vectors[row] = self._table[encoding.ids].mean(axis=0)
        return unit_rows(vectors)

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        path = packaged("wordllama", "tokenizers/l2_supercat_tokenizer_config.json", _REMEDY)
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        return tokenizer

    @cached_property
    def _table(self) -> Vectors:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        path = packaged("wordllama", "weights/l2_supercat_256.safetensors", _REMEDY)
        try:
            return np.asarray(load_file(path)["embedding.weight"], np.float32)
        except (SafetensorError, KeyError, OSError) as exc:
            raise KnowledgeError(f"embedding model {path} cannot be loaded; install it again: {_REMEDY}") from exc
