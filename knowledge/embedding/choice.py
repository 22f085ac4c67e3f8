"""The embedder that a setting names."""

from cudal2_agent.knowledge.embedding.embedder import Embedder
from cudal2_agent.knowledge.embedding.minilm import MiniLm
from cudal2_agent.knowledge.embedding.static import StaticModel
from cudal2_agent.knowledge.embedding.transformer import TransformerModel


def make_embedder(model: str = "default", device: str = "cpu", precision: str = "float32") -> Embedder:
    """The embedder for `default`, `minilm`, `static`, or a name or folder for sentence-transformers. Nothing is loaded yet.

    Device and precision apply to sentence-transformers; the packaged models run on the CPU in a fixed precision.
    """
    if model in ("default", "static"):
        return StaticModel()
    if model == "minilm":
        return MiniLm()
    return TransformerModel(model, device, precision)
