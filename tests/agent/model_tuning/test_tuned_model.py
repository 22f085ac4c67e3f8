"""What `tune` is given: files, configurations, traces, and what is none of them."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.model_tuning import tuned_model
from cudal2_agent.agent.model_tuning.tune_records import RecordedPass, RecordedPasses, TuneRequest
from cudal2_agent.agent.model_tuning.tuned_model import DEFAULT_TOKENS, open_model, read_tokens
from cudal2_agent.contract.errors import UsageError
from tests.agent.library.advise.traces import H200, kernel, operator, write_trace

SIZED = """
import torch
def model():
    return torch.nn.Linear(64, 32, bias=False).half()
def inputs(tokens):
    return (torch.ones(tokens, 64).half(),)
"""
FIXED = SIZED.replace("inputs(tokens)", "inputs()").replace("ones(tokens", "ones(48")
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "torch_dtype": "float16",
    "auto_map": {"AutoConfig": "nowhere--module.Class"},
}


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def shapes(path: Path, tokens: tuple[int, ...] = ()) -> dict[int | None, set[tuple[str, str, str, int]]]:
    return {
        count: {
            (one.product.shape, one.product.layout, one.product.element, one.calls)
            for one in recording.alone().products
            if one.product.part == "forward"
        }
        for count, recording in open_model(path, tokens).recordings().items()
    }


def test_inputs_are_made_for_each_number_of_tokens(tmp_path: Path) -> None:
    file = written(tmp_path / "model.py", SIZED)
    assert shapes(file, (1, 16)) == {1: {("1x32x64", "tn", "f16", 1)}, 16: {("16x32x64", "tn", "f16", 1)}}


def test_inputs_without_a_number_are_one_pass(tmp_path: Path) -> None:
    assert shapes(written(tmp_path / "model.py", FIXED)) == {None: {("48x32x64", "tn", "f16", 1)}}


def test_a_configuration_is_made_with_random_weights_and_without_code_of_others(tmp_path: Path) -> None:
    found = shapes(written(tmp_path / "config.json", json.dumps(LLAMA)), (16,))
    assert found == {
        16: {
            ("16x128x128", "tn", "f16", 4),
            ("16x64x128", "tn", "f16", 4),
            ("16x256x128", "tn", "f16", 4),
            ("16x128x256", "tn", "f16", 2),
            ("16x1000x128", "tn", "f16", 1),
        }
    }
    assert open_model(tmp_path / "config.json").tokens == DEFAULT_TOKENS


FETCHED = {
    "attn_implementation": "someone/kernels",
    "_attn_implementation": "someone/kernels",
    "experts_implementation": "someone/kernels",
    "quantization_config": {"quant_method": "none such"},
    "backbone": "someone/weights",
    "use_pretrained_backbone": True,
}


@pytest.mark.parametrize("name", FETCHED)
def test_nothing_that_a_configuration_names_elsewhere_is_fetched(tmp_path: Path, name: str) -> None:
    plain = shapes(written(tmp_path / "plain.json", json.dumps(LLAMA)), (16,))
    assert shapes(written(tmp_path / "config.json", json.dumps(LLAMA | {name: FETCHED[name]})), (16,)) == plain
    nested = {"model_type": "llama", name: FETCHED[name], "text_config": {name: FETCHED[name], "vocab_size": 9}}
    assert tuned_model._harmless(nested) == {"model_type": "llama", "text_config": {"vocab_size": 9}}


@pytest.mark.parametrize(
    ("name", "text", "tokens", "said"),
    [
        ("model.py", SIZED, (), "name some, like --tokens"),
        ("model.py", FIXED, (16,), "takes no number of tokens"),
        ("model.py", "import torch\n", (), r"does not define model\(\)"),
        ("config.json", "{", (), "is no JSON"),
        ("config.json", json.dumps({"model_type": "no such model"}), (), "cannot use this configuration"),
        ("config.json", json.dumps({"model_type": "vit", "hidden_size": 64}), (), "takes no token ids"),
        (
            "config.json",
            json.dumps({"model_type": "llama", "vocab_size": "many"}),
            (),
            "cannot use this configuration",
        ),
        ("config.json", json.dumps({"model_type": "llama", "text_config": 3}), (), "takes no token ids"),
        ("trace.json", json.dumps({"traceEvents": []}), (16,), "so --tokens says nothing about it"),
        ("model.bin", "\x00", (16,), "so --tokens says nothing about it"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, name: str, text: str, tokens: tuple[int, ...], said: str) -> None:
    file = written(tmp_path / name, text)
    with pytest.raises(UsageError, match=said) as caught:
        open_model(file, tokens)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        open_model(tmp_path / "absent.py")


def test_a_trace_has_products_and_no_model(tmp_path: Path) -> None:
    events = [operator("aten::mm", 1, 0, 9, [[48, 64], [64, 32]]), kernel(1, 4.0)]
    write_trace(tmp_path / "trace.json.gz", events, **H200)
    found = open_model(tmp_path / "trace.json.gz")
    assert (found.kind, found.make) == ("trace", None)
    assert [one.product.shape for one in found.recordings()[None].products] == ["48x32x64"]


@pytest.mark.parametrize(("text", "numbers"), [("1,16", (1, 16)), (" 8 , 8", (8,)), (None, ()), ("", ())])
def test_numbers_of_tokens(text: str | None, numbers: tuple[int, ...]) -> None:
    assert read_tokens(text) == numbers


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", "²", "99999999999"])
def test_wrong_numbers_of_tokens_are_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="write whole numbers above 0"):
        read_tokens(text)


@pytest.mark.parametrize(("training", "calls"), [(False, {"forward": 2}), (True, {"forward": 2, "dW": 2})])
def test_passes_add_up_and_inference_has_forward_products_alone(tmp_path: Path, training: bool, calls: dict[str, int]) -> None:
    recording = open_model(written(tmp_path / "model.py", FIXED)).recordings()[None]
    request = TuneRequest(model="model.py", sha256="0" * 64, tokens=(1, 2), training=training, chip="H200")
    passes = tuple(RecordedPass(tokens=count, recording=recording) for count in (1, 2))
    merged = RecordedPasses(request=request, passes=passes).merged()
    assert {one.product.part: one.calls for one in merged.products} == calls
