"""The model that `tune` is given: a file with `model()` and `inputs()`, a configuration of Hugging Face, or a trace.

A configuration is a JSON object with `model_type`, as lies beside every published model. transformers makes the model of it,
with random weights; no code of others is run, and nothing is downloaded.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cudal2_agent.agent.library.advise.products import Recording
from cudal2_agent.agent.library.advise.profiler_trace import read_trace
from cudal2_agent.agent.library.advise.recording import load_model_file, record
from cudal2_agent.contract.errors import MachineError, UsageError
from cudal2_agent.contract.foreign import parse_json, read_file

DEFAULT_TOKENS = (1, 16, 512)  # of a configuration: decoding of one sequence and of sixteen, and a prompt
_PLAIN = "bfloat16"  # where a configuration names no type
_TYPES = ("float16", "bfloat16")
_FOREIGN = frozenset({"auto_map", "quantization_config", "custom_pipelines"})

Inputs = Callable[[int | None], Any]


class TunedModel(NamedTuple):
    """`make`: the module, None for a trace. `inputs`: its arguments for a number of tokens.

    `tokens`: empty where it takes no number. `sha256`: of the file.
    """

    path: Path
    kind: Literal["file", "configuration", "trace"]
    sha256: str
    tokens: tuple[int, ...] = ()
    make: Callable[[], Any] | None = None
    inputs: Inputs | None = None

    def recordings(self) -> dict[int | None, Recording]:
        """What one pass multiplies, by the number of tokens. Raises: UsageError, MachineError."""
        if self.make is None or self.inputs is None:
            return {None: read_trace(self.path)}
        make, inputs = self.make, self.inputs
        return {count: record(str(self.path), make, partial(inputs, count)) for count in self.tokens or (None,)}


def open_model(path: Path, tokens: tuple[int, ...] = ()) -> TunedModel:
    """Raises: UsageError for a file that is none of the three, and for tokens where it takes none; MachineError."""
    try:
        content = read_file(path)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except ValueError as exc:
        raise UsageError(f"{path}: {exc}") from exc
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix == ".py":
        file = load_model_file(path)
        if tokens and not file.takes_tokens:
            raise UsageError(f"{path}: inputs() takes no number of tokens; write inputs(tokens), or leave out --tokens")
        if file.takes_tokens and not tokens:
            raise UsageError(f"{path}: inputs takes a number of tokens; name some, like --tokens 1,16,512")
        inputs: Inputs = file.inputs if file.takes_tokens else lambda _: file.inputs()
        return TunedModel(path, "file", digest, tokens, file.model, inputs)
    settings = _configuration(content, path)
    if settings is not None:
        make, inputs = _configured(path, settings)
        return TunedModel(path, "configuration", digest, tokens or DEFAULT_TOKENS, make, inputs)
    if tokens:
        raise UsageError(f"{path} is no Python file and no configuration, so --tokens says nothing about it")
    return TunedModel(path, "trace", digest)


def _configuration(content: bytes, path: Path) -> dict[str, Any] | None:
    """The fields of a configuration; None for another file."""
    if path.suffix != ".json":
        return None
    try:
        found = parse_json(content)
    except ValueError as exc:
        raise UsageError(f"{path} is no JSON: {exc}") from exc
    return found if isinstance(found, dict) and isinstance(found.get("model_type"), str) else None


def _configured(path: Path, fields: dict[str, Any]) -> tuple[Callable[[], Any], Inputs]:
    """A model of transformers, and token ids of one sequence. Raises: UsageError, MachineError."""
    try:
        import torch
        import transformers
    except ImportError as exc:
        raise MachineError(f"a configuration needs {exc.name}; pip install torch transformers") from exc
    element = fields.get("dtype") or fields.get("torch_dtype") or _PLAIN
    if element not in _TYPES:
        element = _PLAIN  # a model in single precision is served in half precision
    names = fields.get("architectures")
    given = _harmless(fields)
    try:
        configuration = transformers.AutoConfig.for_model(given.pop("model_type"), **given)
        configuration.use_cache = False
        kind = getattr(transformers, str(names[0]), None) if isinstance(names, list) and names else None
        words = getattr(configuration.get_text_config(), "vocab_size", None)
    except Exception as exc:
        why = " ".join(str(exc).split())[:300]
        raise UsageError(f"{path}: transformers {transformers.__version__} cannot use this configuration: {why}") from exc
    if not isinstance(words, int):
        raise UsageError(f"{path}: a {fields['model_type']} takes no token ids; write a file with model() and inputs()")

    def make() -> Any:
        make_of: Any = transformers.AutoModel.from_config if kind is None else kind._from_config
        return make_of(configuration, dtype=getattr(torch, element))

    def inputs(tokens: int | None) -> Any:
        return {"input_ids": torch.randint(0, words, (1, tokens or 1))}

    return make, inputs


def _harmless(fields: dict[str, Any]) -> dict[str, Any]:
    """A configuration without what names code or weights elsewhere: transformers would fetch them, and run the code.

    Such are classes (`auto_map`), kernels of the hub (`attn_implementation`), backbones, and private fields of transformers.
    """
    return {
        name: _harmless(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if name not in _FOREIGN and "backbone" not in name and not name.startswith("_") and not name.endswith("_implementation")
    }


def read_tokens(text: str | None) -> tuple[int, ...]:
    """`1,16,512`. Raises: UsageError."""
    parts = [part.strip() for part in (text or "").split(",") if part.strip()]
    if any(not (part.isascii() and part.isdigit() and 0 < int(part) <= 2**20) for part in parts):
        raise UsageError(f"--tokens {text!r}: write whole numbers above 0 with commas, like --tokens 1,16,512")
    return tuple(dict.fromkeys(map(int, parts)))
