"""Options of the parts: slices of the settings. Imports pydantic only, so that a bare GPU worker can import them."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from cudal2_agent.contract.base import Record

COMPILE_TIMEOUT_S = 120.0
VERIFY_TIMEOUT_S = 30.0
TIME_TIMEOUT_S = 120.0
FULL_ROUNDS, QUICK_ROUNDS = 21, 7  # paired timing rounds of a final measurement, and while searching


class CompileOptions(Record):
    """Limits of one compilation in a child process. `trust_host`: whether host candidates may be built and run."""

    cache_dir: str
    jobs: Annotated[int, Field(ge=1, le=256)] = 2
    timeout_s: Annotated[float, Field(gt=0)] = COMPILE_TIMEOUT_S
    memory_bytes: int = 8 * 1024**3
    max_output_bytes: int = 256 * 1024**2
    nvcc: str | None = None
    trust_host: bool = False


Tier = Literal["all", "waits"]


class VerifyOptions(Record):
    """Options of verification.

    `rounds`: repeated runs on fresh data (tier 5). `error_ratio`: maximum error relative to the error of cuBLAS (tier 2).
    `seed`: of all data, orders and schedules. None draws it from the system's entropy; each test records its seed.
    `tier`: all, or `waits`, the programmatic tier alone.
    """

    seed: int | None = None
    tier: Tier = "all"
    rounds: Annotated[int, Field(ge=1)] = 3
    error_ratio: float = 2.0
    timeout_s: Annotated[float, Field(gt=0)] = VERIFY_TIMEOUT_S


class TimeOptions(Record):
    """Options of timing.

    `rounds`: paired rounds in random order. `all_baselines`: all four baselines, else cuBLASLt-AutoTuning only.
    `heuristic`: cuBLASLt's first suggestion as well, where not all are measured.
    `max_autotune`: of a module, PyTorch's compiler with tuning as well, which takes minutes.
    `side`: whether the side figures (host launch cost, hot L2, wall-clock) are measured as well.
    `round_us`: device time of the launches of one sample, about.
    `server_interval_us`: mean interval between a server's requests; 0 sends the next one at once.
    `server_launches`: requests of a server's sample at most; fewer where they would take longer than `round_us`.
    `budget_s`: of the rounds of a race, which are fewer where they would take longer; None is no limit.
    `secret`: the seed of everything that is drawn. None takes it from the system's entropy; that of a `Ruler` repeats it.
    """

    secret: int | None = None
    rounds: Annotated[int, Field(ge=3)] = 11
    round_us: float = 4000.0
    all_baselines: bool = True
    heuristic: bool = False
    max_autotune: bool = True
    side: bool = True
    budget_s: Annotated[float, Field(gt=0)] | None = None
    server_interval_us: float = 200.0
    server_launches: int = 200
    timeout_s: Annotated[float, Field(gt=0)] = TIME_TIMEOUT_S


# A screen ranks candidates; a race decides among the best of them.
SCREEN_TIME = TimeOptions(
    rounds=3, round_us=1000.0, all_baselines=False, side=False, server_interval_us=0.0, server_launches=12
)
RACE_TIME = TimeOptions(rounds=FULL_ROUNDS, all_baselines=False, heuristic=True, side=False, budget_s=3.0, server_launches=16)


class WorkerOptions(Record):
    """Options of a worker process of one GPU. Its address space is unlimited because CUDA maps far more than it uses.

    `readable`: folders that it may read in addition to programs and libraries, such as the compile cache; None for all.
    `turns`: folder of the locks by which processes that share a GPU alternate; None for no locks.
    """

    device: int = 0
    start_timeout_s: float = 120.0
    scratch_dir: str | None = None
    python: str | None = None
    readable: tuple[str, ...] | None = None
    turns: str | None = None


class EmulateOptions(Record):
    """Options of the emulator."""

    timeout_s: Annotated[float, Field(gt=0, description="limit of proving a candidate on the emulator")] = 180.0


class ProfileOptions(Record):
    """Options of profiling one candidate."""

    ncu: Annotated[
        str | None, Field(description="path of Nsight Compute; by default PATH and the usual folders are searched")
    ] = None
    timeout_s: Annotated[float, Field(gt=0, description="limit of profiling a candidate")] = 60.0


# A model's name; empty, and stored as null, where none is named.
ModelName = Annotated[str, BeforeValidator(lambda name: name or ""), PlainSerializer(lambda name: name or None)]


# What a model may reply with: sources (whole files and patches), schedules of the kernel families, or any of these.
ReplyKind = Literal["source", "schedule", "any"]


class ChatOptions(Record):
    """Options of the chat policy. Caps apply per run; None is no cap."""

    model: Annotated[ModelName, Field(description="name of the model at the server")] = ""
    base_url: Annotated[str | None, Field(description="address of the server, /v1 included; OpenAI's own by default")] = None
    samples: Annotated[int, Field(ge=1, le=64, description="replies requested per round")] = 4
    parallel: Annotated[int, Field(ge=1, le=64, description="concurrent requests")] = 4
    temperature: Annotated[float | None, Field(ge=0, le=2, description="of sampling; not sent where a server refuses it")] = 0.8
    replies: Annotated[ReplyKind, Field(description="what a reply may hold: source (files and patches), schedule, or any")] = (
        "any"
    )
    schedules: Annotated[int, Field(ge=1, le=64, description="schedules of one reply at most")] = 4
    turns: Annotated[int, Field(ge=0, description="how often a reply may be sent back for its form")] = 1
    repairs: Annotated[int, Field(ge=0, description="how often a failed candidate may be rewritten in a chain")] = 3
    prompt_tokens: Annotated[int, Field(ge=512, description="limit of a prompt with its optional sections")] = 24_000
    reply_tokens: Annotated[int, Field(ge=16, description="limit of one reply")] = 16_384
    first_byte_s: Annotated[
        float, Field(gt=0, description="seconds of silence before a reply's first token, and within it")
    ] = 900.0
    reply_s: Annotated[float, Field(gt=0, description="seconds to the end of a reply")] = 1800.0
    retries: Annotated[int, Field(ge=0, description="repeats of a failed request, with growing pauses")] = 4
    tools: Annotated[
        Literal["auto", "on", "off"], Field(description="whether tools are offered; auto: until the server refuses them")
    ] = "auto"
    tool_calls: Annotated[int, Field(ge=1, description="tool calls of a conversation at most")] = 6
    tool_s: Annotated[float, Field(gt=0, description="limit of one tool call")] = 60.0
    tool_tokens: Annotated[int, Field(ge=64, description="limit of one tool result")] = 2000
    tokens: Annotated[int | None, Field(ge=1, description="cap on tokens of a run, prompts and replies")] = 2_000_000
    money: Annotated[float | None, Field(gt=0, description="cap on money of a run, by the two prices")] = None
    minutes: Annotated[float | None, Field(gt=0, description="cap on minutes of a run spent waiting for replies")] = None
    prompt_price: Annotated[float, Field(ge=0, description="price of a million prompt tokens, in the currency of `money`")] = (
        0.0
    )
    reply_price: Annotated[float, Field(ge=0, description="price of a million reply tokens")] = 0.0


# How thoroughly a candidate is verified and timed. `screen`: one exact test and a few short rounds, for kernels of trusted
# writers. `quick`: all tiers, rounds against cuBLASLt-AutoTuning. `race`: all tiers, together with the other finalists in the
# same rounds. `full`: all tiers, all baselines.
Effort = Literal["screen", "quick", "race", "full"]
