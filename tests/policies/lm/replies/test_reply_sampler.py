"""Replies of a tiny model: greedy ones among sampled ones, few calls, and weights that come back as they were."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from cudal2_agent.policies.lm.base_model import LoadedModel, load_base
from cudal2_agent.policies.lm.compact_prompt import messages_of
from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler, merged_adapter
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from tests.doubles import CHIP
from tests.policies.lm.tiny import TASKS, tiny_model

PROMPTS = [messages_of(schedules_for(task, CHIP)) for task in TASKS]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def loaded(base: Path) -> LoadedModel:
    """The model with an adapter that changes what it says."""
    plain = load_base(str(base), "cpu")
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(plain.model, config)
    torch.manual_seed(1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(0.0, 0.1)
    return LoadedModel(model, plain.tokenizer, plain.name, plain.fingerprint)


def texts(sampler: ReplySampler, seed: int, count: int = 3, **options: Any) -> list[list[str]]:
    return [[reply.text for reply in of_prompt] for of_prompt in sampler.sample(PROMPTS, count, seed, **options)]


def counted(loaded: LoadedModel) -> list[int]:
    """The rows of each call of `generate` from now on."""
    rows: list[int] = []
    generate = loaded.model.generate

    def counting(**named: Any) -> Any:
        rows.append(len(named["input_ids"]))
        return generate(**named)

    loaded.model.generate = counting
    return rows


def test_the_first_reply_is_the_most_likely_one_whatever_the_seed(loaded: LoadedModel) -> None:
    sampler = ReplySampler(loaded, reply_tokens=10)
    one, other = (texts(sampler, seed, greedy_first=True) for seed in (0, 1))
    assert [of_prompt[0] for of_prompt in one] == [of_prompt[0] for of_prompt in other]
    assert [of_prompt[1:] for of_prompt in one] != [of_prompt[1:] for of_prompt in other]
    cold = ReplySampler(loaded, reply_tokens=10, temperature=1e-4)
    assert [of_prompt[0] for of_prompt in one] == [of_prompt[0] for of_prompt in texts(cold, 2, count=1)]
    assert texts(sampler, 0)[0][0] != one[0][0], "without it all replies are samples"


def test_greedy_and_sampled_replies_to_all_prompts_take_one_call(loaded: LoadedModel) -> None:
    rows = counted(loaded)
    sampler = ReplySampler(loaded, reply_tokens=4)
    first = texts(sampler, 0, count=4, greedy_first=True)
    assert rows == [8]
    assert texts(sampler, 0, count=4, greedy_first=True) == first
    texts(ReplySampler(loaded, reply_tokens=4, batch=3), 0, count=4, greedy_first=True)
    assert rows[2:] == [3, 3, 2]


def test_a_merged_adapter_says_the_same_and_leaves_every_weight_as_it_was(loaded: LoadedModel) -> None:
    model = loaded.model.eval()
    ids = torch.arange(5, 25).unsqueeze(0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        apart = model(input_ids=ids).logits
        with model.disable_adapter():
            without = model(input_ids=ids).logits
        with merged_adapter(model):
            merged = model(input_ids=ids).logits
        after = model(input_ids=ids).logits
    assert torch.allclose(merged, apart, atol=1e-4)
    assert not torch.allclose(without, apart, atol=1e-2)
    assert torch.equal(after, apart)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_weights_in_bfloat16_come_back_as_they_were(loaded: LoadedModel) -> None:
    """On a GPU the base is bfloat16 and the adapter float32."""
    model = loaded.model.eval()
    for name, weight in model.named_parameters():
        if "lora" not in name:
            weight.data = weight.data.to(torch.bfloat16)
    ids = torch.arange(5, 25).unsqueeze(0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        apart = model(input_ids=ids).logits.float()
        with merged_adapter(model):
            merged = model(input_ids=ids).logits.float()
        with model.disable_adapter():
            without = model(input_ids=ids).logits.float()
    assert (merged - apart).abs().mean() < 0.1 * (without - apart).abs().mean()
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_an_error_while_tokens_are_sampled_leaves_every_weight_as_it_was(loaded: LoadedModel) -> None:
    before = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    with pytest.raises(RuntimeError), merged_adapter(loaded.model):
        raise RuntimeError
    assert all(torch.equal(weight, before[name]) for name, weight in loaded.model.state_dict().items())
    assert not any(getattr(one, "merged", False) for one in loaded.model.modules())
