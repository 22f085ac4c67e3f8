"""Which embedding model a setting names."""

from knowledge.embedding.embedder import Embedder
from knowledge.embedding.minilm import MiniLm
from knowledge.embedding.static import StaticModel
from knowledge.embedding.transformer import TransformerModel


def make_embedder(model: str = "default", device: str = "cpu", precision: str = "float32") -> Embedder:
    """`default`, `minilm`, `static`, or what sentence-transformers takes: a name or a folder; nothing is loaded yet.

    Device and precision are for the last; the packaged models run on the CPU in their own precision.
    """
    if model in ("default", "static"):
        return StaticModel()
    if model == "minilm":
        return MiniLm()
    return TransformerModel(model, device, precision)
