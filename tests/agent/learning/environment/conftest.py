"""A tiny random model with a tokenizer, for TRL's trainer. Nothing is loaded; tests that use them are skipped without `trl`."""

import json
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.learning.environment.tool_environment import ToolEnvironments
from tests.agent.learning.environment.environment_doubles import SMALL, WIDE, FixedScore


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Byte-level BPE over a prompt, with the marks and the template of Qwen3, whose tool calls TRL parses."""
    trl = pytest.importorskip("trl", reason="needs the extra: pip install 'cudal2-agent[trainers]'")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    environments = ToolEnvironments(FixedScore(), [SMALL, WIDE])
    text = environments().reset(**environments.rows()[0]) + json.dumps({"family": "mma_sync"})
    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    marks = ["<|im_end|>", "<|endoftext|>", "<|im_start|>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    model.train_from_iterator([text], trainers.BpeTrainer(vocab_size=800, special_tokens=marks[:3], initial_alphabet=alphabet))
    model.add_tokens(marks[3:])
    fast = PreTrainedTokenizerFast(tokenizer_object=model, eos_token=marks[0], pad_token=marks[1])
    fast.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text()
    return fast


@pytest.fixture
def tiny_model(tokenizer: Any) -> Any:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    marks = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    config = Qwen2Config(vocab_size=len(tokenizer), num_key_value_heads=1, max_position_embeddings=8192, **sizes, **marks)
    return Qwen2ForCausalLM(config)


@pytest.fixture
def one_step(tmp_path: Path) -> Any:
    """The arguments of a trainer that takes one step on a CPU, with two rollouts."""
    from trl import GRPOConfig

    return GRPOConfig(
        str(tmp_path),
        num_generations=2,
        per_device_train_batch_size=2,
        max_completion_length=512,
        learning_rate=0.1,
        max_steps=1,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
