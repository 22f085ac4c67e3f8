"""`datasets` loads every format, and TRL's trainers take a step with the columns as they are.

An extra: without `trl` these tests are skipped. The model is tiny and random, the tokenizer is trained here; nothing is loaded.
"""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'cudal2-agent[trainers]'")

import datasets
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer, SFTConfig, SFTTrainer

from cudal2_agent.policies.exports.dataset import export_dataset
from cudal2_agent.policies.exports.formats import FORMATS, ExportOptions
from tests.policies.exports.runs import PROMPTS, searched

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKS = ["<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]
SHAPES = [(256, 256, 256), (512, 256, 256), (384, 128, 64)]
ONE_STEP = {"max_steps": 1, "report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder per format, with a test split."""
    folder = tmp_path_factory.mktemp("exports")
    options = ExportOptions(test_shapes=("384x128x64",))
    for name in (*FORMATS, "parquet"):
        runs = [searched(shape, f"run-{number}") for number, shape in enumerate(SHAPES)]
        export_dataset(runs, name, folder / name, options, PROMPTS)
    runs = [searched(shape, f"run-{number}") for number, shape in enumerate(SHAPES)]
    export_dataset(runs, "sft", folder / "messages", ExportOptions(messages=True), PROMPTS)
    return folder


@pytest.fixture(scope="module")
def load(exports: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    cache = tmp_path_factory.mktemp("cache")
    return lambda name: datasets.load_dataset(str(exports / name), cache_dir=str(cache))


@pytest.fixture(scope="module")
def tokenizer(exports: Path) -> PreTrainedTokenizerFast:
    """Byte-level BPE over the texts of the export."""
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    lines = (exports / "sft" / "train.jsonl").read_text("utf-8").splitlines()
    texts = [message["content"] for line in lines for message in json.loads(line)["prompt"]]
    model.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=1024, special_tokens=MARKS, initial_alphabet=alphabet))
    fast = PreTrainedTokenizerFast(tokenizer_object=model, eos_token=MARKS[0], pad_token=MARKS[1])
    fast.chat_template = CHAT_TEMPLATE
    return fast


@pytest.fixture
def model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=16384,
            bos_token_id=tokenizer.eos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def trained(trainer: Any, model: Qwen2ForCausalLM) -> None:
    """One step is taken: the loss is a number and weights have changed."""
    before = model.lm_head.weight.detach().clone()
    loss = trainer.train().training_loss
    assert math.isfinite(loss)
    assert trainer.state.global_step == 1
    assert not torch.equal(before, model.lm_head.weight)


@pytest.mark.parametrize("name", [*FORMATS, "messages", "parquet"])
def test_datasets_loads_what_was_written(exports: Path, load: Any, name: str) -> None:
    """The columns have the types that the card declares, and the values that the files hold."""
    loaded = load(name)
    assert set(loaded) == ({"train"} if name == "messages" else {"train", "test"})
    for split, rows in loaded.items():
        assert rows.features == loaded["train"].features
        if name == "parquet":
            assert len(rows) == 8 * (2 if split == "train" else 1)
            continue
        lines = (exports / name / f"{split}.jsonl").read_text("utf-8").splitlines()
        assert list(rows) == [json.loads(line) for line in lines] != []


@pytest.mark.parametrize("name", FORMATS)
def test_one_file_loads_without_its_card(exports: Path, tmp_path: Path, name: str) -> None:
    file = str(exports / name / "train.jsonl")
    assert len(datasets.load_dataset("json", data_files=file, cache_dir=str(tmp_path))["train"]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "messages", "contrastive"])
def test_a_step_of_supervised_training(
    load: Any, name: str, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    arguments = SFTConfig(str(tmp_path), max_length=16384, per_device_train_batch_size=2, learning_rate=0.1, **ONE_STEP)
    trained(SFTTrainer(model, arguments, train_dataset=load(name)["train"], processing_class=tokenizer), model)


@pytest.mark.slow
def test_a_step_of_direct_preference(
    load: Any, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    arguments = DPOConfig(str(tmp_path), max_length=16384, per_device_train_batch_size=2, learning_rate=0.1, **ONE_STEP)
    rows, reference = load("preference")["train"], copy.deepcopy(model)
    trained(DPOTrainer(model, reference, args=arguments, train_dataset=rows, processing_class=tokenizer), model)


@pytest.mark.slow
def test_a_step_of_labelled_answers(
    load: Any, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    rows = load("kto")["train"]
    assert set(rows["label"]) == {True, False}
    arguments = KTOConfig(str(tmp_path), max_length=16384, per_device_train_batch_size=2, learning_rate=0.1, **ONE_STEP)
    reference = copy.deepcopy(model)
    trained(KTOTrainer(model, reference, args=arguments, train_dataset=rows, processing_class=tokenizer), model)


@pytest.mark.slow
def test_a_step_on_line_with_the_columns_in_the_reward_function(
    load: Any, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    seen: list[dict[str, Any]] = []

    def score(completions: list[Any], **columns: Any) -> list[float]:
        """A reward that differs within a group: what a kernel's time would be is drawn from its text."""
        seen.append(columns)
        times = [1.0 + len(completion[0]["content"]) for completion in completions]
        known = zip(times, columns["baseline_us"], strict=True)
        return [math.log((baseline_us or 10.0) / time_us) for time_us, baseline_us in known]

    arguments = GRPOConfig(
        str(tmp_path),
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=12,
        learning_rate=0.1,
        **ONE_STEP,
    )
    trainer = GRPOTrainer(model, score, args=arguments, train_dataset=load("grpo")["train"], processing_class=tokenizer)
    trained(trainer, model)
    assert set(seen[0]["m"]) <= {256, 512}
    assert {"n", "k", "layout", "roofline_us", "best_reward", "environment", "provenance"} <= seen[0].keys()
