"""Any model of sentence-transformers, by name from the local cache or a hub, or from a folder."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from warnings import catch_warnings, simplefilter

import numpy as np

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.embedding.embedder import Vectors, encodable, fingerprint, unit_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_LOUD = ("sentence_transformers", "transformers", "huggingface_hub")


class TransformerModel:
    """An `Embedder` with a sentence-transformers model, which is loaded at first use."""

    def __init__(self, model: str, device: str = "cpu", precision: str = "float32") -> None:
        self._name = model
        self._device = device
        self._precision = precision

    @cached_property
    def identity(self) -> str:
        folder = Path(self._name)
        revision = _folder_revision(folder) if folder.is_dir() else self._cached_revision()
        return f"{self._name} {revision} {self._precision}"

    @cached_property
    def dimensions(self) -> int:
        return int(self._model.get_embedding_dimension() or 0)

    def embed(self, texts: Sequence[str]) -> Vectors:
        if not texts:
            return np.zeros((0, self.dimensions), np.float32)
        with self._translated(), _quiet():
            rows = self._model.encode(encodable(texts), show_progress_bar=False, convert_to_tensor=True)
        return unit_rows(np.asarray(rows.float().cpu().numpy(), np.float32))

    def _cached_revision(self) -> str:
        """The commit of the local copy. A model without a local copy is fetched first, so that its commit is known."""
        from huggingface_hub import try_to_load_from_cache

        with self._translated():
            for name in (self._name, f"sentence-transformers/{self._name}"):
                found = try_to_load_from_cache(name, "config.json")
                if isinstance(found, str):
                    return Path(found).parent.name[:12]
        commit = getattr(self._model[0].auto_model.config, "_commit_hash", None)
        return str(commit or "unknown")[:12]

    @cached_property
    def _model(self) -> "SentenceTransformer":
        with self._translated(), _quiet():
            import torch
            from sentence_transformers import SentenceTransformer

            precision = {"torch_dtype": getattr(torch, self._precision)}
            return SentenceTransformer(self._name, device=self._device, model_kwargs=precision)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except ImportError as exc:
            raise KnowledgeError(f"embedding model {self._name} needs {exc.name}; pip install sentence-transformers") from exc
        except (OSError, ValueError, RuntimeError, AssertionError) as exc:  # offline hub, invalid folder, missing device
            reason = str(exc).splitlines()[0][:160] if str(exc) else type(exc).__name__
            raise KnowledgeError(
                f"embedding model {self._name} cannot be used on {self._device} ({reason}); give a folder that holds it, "
                "or unset CUDAL2_EMBEDDING_MODEL for the packaged one"
            ) from exc


def _folder_revision(folder: Path) -> str:
    """A digest of all weights and configuration in a folder. Raises: KnowledgeError for a folder without a model."""
    wanted = (".safetensors", ".bin", ".json", ".txt")
    found = sorted(path for path in folder.rglob("*") if path.suffix in wanted and path.is_file())
    if not found:
        raise KnowledgeError(f"embedding model folder {folder} contains no model; name one that sentence-transformers saved")
    return digest([[path.relative_to(folder).as_posix(), fingerprint(path)] for path in found], length=12)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings, log lines and progress bars of the model's libraries."""
    from transformers.utils import logging as bars

    levels = {name: logging.getLogger(name).level for name in _LOUD}
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()  # type: ignore[no-untyped-call]
    for name in _LOUD:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with catch_warnings():
            simplefilter("ignore")
            yield
    finally:
        if shown:
            bars.enable_progress_bar()  # type: ignore[no-untyped-call]
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
