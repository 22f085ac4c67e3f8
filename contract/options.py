"""Slices of the settings that parts take; pydantic only, so that a bare GPU worker can import them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from contract.base import Record

COMPILE_TIMEOUT_S = 120.0
VERIFY_TIMEOUT_S = 30.0
TIME_TIMEOUT_S = 120.0


class CompileOptions(Record):
    """Limits of one compilation in a child process. `trust_host`: whether host candidates are built and run at all."""

    cache_dir: str
    jobs: Annotated[int, Field(ge=1, le=256)] = 2
    timeout_s: Annotated[float, Field(gt=0)] = COMPILE_TIMEOUT_S
    memory_bytes: int = 8 * 1024**3
    max_output_bytes: int = 256 * 1024**2
    nvcc: str | None = None
    trust_host: bool = False


class VerifyOptions(Record):
    """`rounds`: repeated runs on fresh data (tier 5). `error_ratio`: error allowed against cuBLAS's own (tier 2).

    `seed`: of all data, orders and schedules; None draws them from the system's entropy, and each test records its seed.
    """

    seed: int | None = None
    rounds: Annotated[int, Field(ge=1)] = 3
    error_ratio: float = 2.0
    timeout_s: Annotated[float, Field(gt=0)] = VERIFY_TIMEOUT_S


class TimeOptions(Record):
    """`rounds`: paired rounds in random order. `all_baselines`: all four, else only the autotuned one; `side`: side figures.

    `secret`: what all that is drawn follows from; None for the system's entropy, a record's own (`Ruler`) to take it again.
    """

    secret: int | None = None
    rounds: Annotated[int, Field(ge=3)] = 11
    round_us: float = 4000.0
    all_baselines: bool = True
    side: bool = True
    server_interval_us: float = 200.0
    server_launches: int = 200
    timeout_s: Annotated[float, Field(gt=0)] = TIME_TIMEOUT_S


class WorkerOptions(Record):
    """A worker process of one GPU. Its address space has no limit: CUDA maps far more than it uses.

    `readable`: folders that it may read beside programs and libraries, such as the compile cache; None for every file.
    """

    device: int = 0
    start_timeout_s: float = 120.0
    scratch_dir: str | None = None
    python: str | None = None
    readable: tuple[str, ...] | None = None


class EmulateOptions(Record):
    """The emulator in the place of a GPU. `timeout_s`: of one candidate's proof, which takes longer than on a GPU."""

    timeout_s: Annotated[float, Field(gt=0)] = 180.0


class ProfileOptions(Record):
    """One profiling of a candidate. `ncu`: its path; found on PATH and in the usual places where None."""

    ncu: str | None = None
    timeout_s: Annotated[float, Field(gt=0)] = 60.0


# A model's name; empty, and stored as null, where none is named.
ModelName = Annotated[str, BeforeValidator(lambda name: name or ""), PlainSerializer(lambda name: name or None)]


class ChatOptions(Record):
    """How a chat server is asked. Caps are a run's; None is no cap. Prices: per million tokens, in the currency of `money`.

    `samples`: replies asked for a round; `parallel`: requests under way at once. `turns`: how often one reply may be sent
    back because of its form. `repairs`: how often one candidate may be rewritten after a failure. `reply_tokens`: limit of
    one reply; `prompt_tokens`: what the prompt's optional parts must fit in. `first_byte_s`: until the reply's first token;
    `reply_s`: until its end.
    """

    model: ModelName = ""
    base_url: str | None = None
    samples: Annotated[int, Field(ge=1, le=64)] = 4
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    temperature: Annotated[float, Field(ge=0, le=2)] | None = 0.8
    turns: Annotated[int, Field(ge=0)] = 1
    repairs: Annotated[int, Field(ge=0)] = 3
    prompt_tokens: Annotated[int, Field(ge=512)] = 24_000
    reply_tokens: Annotated[int, Field(ge=16)] = 16_384
    connect_s: Annotated[float, Field(gt=0)] = 10.0
    first_byte_s: Annotated[float, Field(gt=0)] = 120.0
    reply_s: Annotated[float, Field(gt=0)] = 600.0
    retries: Annotated[int, Field(ge=0)] = 4
    tokens: Annotated[int, Field(ge=1)] | None = 2_000_000
    money: Annotated[float, Field(gt=0)] | None = None
    minutes: Annotated[float, Field(gt=0)] | None = None
    prompt_price: Annotated[float, Field(ge=0)] = 0.0
    reply_price: Annotated[float, Field(ge=0)] = 0.0


Effort = Literal["quick", "full"]
