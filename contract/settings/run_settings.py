"""The settings of a run: one typed record, which `Settings` fills and a run's record keeps.

In memory the options of one part stand together (`chat.samples`). In the environment, in `cudal2.toml` and in stored runs
they are flat (`chat_samples`), under names that do not change.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.host_limits import memory_limit, usable_processors
from cudal2_agent.contract.settings.options import (
    COMPILE_TIMEOUT_S,
    TIME_TIMEOUT_S,
    VERIFY_TIMEOUT_S,
    ChatOptions,
    EmulateOptions,
    ProfileOptions,
)

GroupedName = tuple[str, str]
_BARE = ("model", "base_url", "tokens", "money", "prompt_price", "reply_price")  # chat options without a prefix
# Flat name → its group and its name there.
FLAT: Mapping[str, GroupedName] = {
    **{(name if name in _BARE else f"chat_{name}"): ("chat", name) for name in ChatOptions.model_fields},
    "emulate_timeout_s": ("emulate", "timeout_s"),
    "ncu": ("profiler", "ncu"),
    "profile_timeout_s": ("profiler", "timeout_s"),
}
FLAT_NAME: Mapping[GroupedName, str] = {place: name for name, place in FLAT.items()}
GROUPS = frozenset(group for group, _ in FLAT.values())
# Settings of older versions that nothing reads any more, as in `FLAT`. Wherever they stand, they are skipped with a notice.
RETIRED: Mapping[str, GroupedName] = {
    **{name: ("", name) for name in ("rounds", "quick_rounds", "use_diagnosis", "screen_sources")},
    "chat_connect_s": ("chat", "connect_s"),
}

# What a run's outcome depends on: a resumed or replayed run takes these from its record unless a flag says otherwise.
# The key of a server does not: it comes from the user each time.
_ENDING = ("budget", "minutes", "stop_near_roofline", "finalists", "race_baselines")
_ROUNDS = (*_ENDING, "round_size", "build_ahead", "precedents")
_SEARCH = (*_ROUNDS, "seed", "verify_seed", "policy", "schedule_prior", "lm", "device")
_SHOWN = ("use_knowledge", "profile")
_CHAT = ("replay", *(name for name, (group, _) in FLAT.items() if group == "chat"))
REPLAYED = frozenset({*_SEARCH, *_SHOWN, *_CHAT})

# What names programs, servers, keys, folders and trust, or what is fetched: a file in the working folder may be a stranger's,
# and so may a run that came from elsewhere. Only flags, the environment and a file that the user allowed set these.
_PLACES = ("home", "local", "store", "lm", "knowledge", "embedding_model", "cutlass", "chroma_host", "chroma_port")
USERS_OWN = frozenset({*_PLACES, "api_key", "openai_key", "api_key_file", "base_url", "nvcc", "ncu", "trust_host", "serve"})
# What a file in the working folder may not set either: a model that is named is asked, at its user's cost.
NOT_FROM_FOLDER = USERS_OWN | {"model"}


# How the name of a device of another machine begins; behind it stands the command that reaches a worker, or a shared folder.
REMOTE_DEVICES = ("exec:", "spool:")


def users_own(name: str, value: object) -> bool:
    """Whether a setting with this value is the user's own: a device that names a program or a folder is."""
    return name in USERS_OWN or (name == "device" and str(value).startswith(REMOTE_DEVICES))


def from_folder(name: str, value: object) -> bool:
    """Whether a file in the working folder may set this."""
    return name not in NOT_FROM_FOLDER and not users_own(name, value)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flat or nested names, with every flat one moved to its group. A flat name wins over a nested one."""
    found = {name: value for name, value in values.items() if name not in FLAT}
    for name, (group, inner) in FLAT.items():
        if name in values:
            held = found.get(group) or {}
            plain = held.model_dump() if isinstance(held, Record) else held
            if isinstance(plain, Mapping):  # anything else is refused as the group that it stands for
                found[group] = {**plain, inner: values[name]}
    return found


JOB_BYTES = 512 * 1024**2  # NVRTC takes 0.1 GiB for a kernel of the families, and 0.34 for one that includes CuTe
# Candidates that suffice where the prior was trained on the chip. Source: docs, 'A budget of 8 against one of 48'.
TRAINED_BUDGET = 8
UNTRAINED_BUDGET = 32  # of `tune`, which searches many products
# Minutes where a chat server is asked: a model may think for ten before its first token.
CHAT_MINUTES = 60.0
WORKER_WAIT_S = 3600.0
HANDED_IN = "mcp"  # the policy of a run whose kernels another agent hands in
# Where another agent drives a run: calls of its tools, and seconds of one. Clients of the protocol wait a minute by default.
AGENT_CALLS = 400
AGENT_CALL_S = 50.0


def _default_home() -> Path:
    """Raises: UsageError for a user without a home, as a container may have."""
    try:
        return Path.home() / ".cudal2"
    except RuntimeError as exc:
        raise UsageError("this user has no home folder; set CUDAL2_HOME to a folder that can be written") from exc


def _processors() -> int:
    """The processors that this process may use, or fewer, as many as a limit of memory has room for."""
    memory = memory_limit()
    return usable_processors() if memory is None else max(min(usable_processors(), memory // JOB_BYTES), 1)


class RunSettings(Record):
    """Settings without keys. A stored run of an older version may lack some: their defaults stand in.

    Names of other versions are kept as they are.
    """

    model_config = ConfigDict(extra="allow")

    home: Path = Field(default_factory=_default_home, description="folder for the store, the caches and the runs")
    local: Path | None = Field(
        default=None, description="folder on a local disk for store, checkpoints, knowledge base and locks; home by default"
    )
    store: str | None = Field(default=None, description="SQLAlchemy URL of the trajectory store; SQLite in local by default")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|none|emulator|cuda:\d+|exec:.*\S.*|spool:.*\S.*)$",
        description="auto (a GPU, else the emulator), emulator, cuda:N or none; elsewhere: exec:COMMAND or spool:FOLDER",
    )
    worker_wait_s: float = Field(
        default=WORKER_WAIT_S, gt=0, description="how long a worker elsewhere is waited for, a cluster's queue included"
    )
    policy: str = Field(
        default="auto",
        description="author of candidates: auto (portfolio where `optimize` has a model, else the search of the task's kind), "
        "schedule, chat, portfolio or lm; fusion or fusion-algebra for a module",
    )
    lm: Path | None = Field(default=None, description="adapter of `train lm`, which the policy lm samples")
    budget: int = Field(
        default=96,
        ge=1,
        le=100_000,
        description=f"candidates a run may evaluate; `optimize` takes {TRAINED_BUDGET} where the prior was trained on the chip",
    )
    minutes: float = Field(
        default=4.0,
        gt=0,
        description=f"wall-clock minutes a run may take; `optimize` takes {CHAT_MINUTES:g} where it asks a chat server",
    )
    round_size: int = Field(default=8, ge=1, le=256, description="candidates proposed at a time")
    build_ahead: bool = Field(
        default=True, description="whether the next round is proposed and built while a GPU still measures this one"
    )
    stop_near_roofline: bool = Field(
        default=True, description="whether a search ends once its best kernel is within 2 % of the roofline"
    )
    finalists: int = Field(default=6, ge=1, le=64, description="candidates of the final measurement")
    race_baselines: Literal["all", "cublaslt"] = Field(
        default="all", description="baselines of the final measurement: all four, or cuBLASLt's two, which takes half the time"
    )
    precedents: int = Field(
        default=12, ge=0, le=256, description="schedules of earlier runs on similar shapes that a search may start from"
    )
    schedule_prior: str = Field(
        default="auto",
        min_length=1,
        description="what ranks untried schedules: auto (a prior trained on the chip, or analytic), analytic, or a prior",
    )
    seed: int = Field(default=0, description="seed of the search")
    verify_seed: int | None = Field(
        default=None, description="seed of verification's data and schedules; drawn anew by default"
    )
    compile_jobs: int = Field(default_factory=_processors, ge=1, le=256, description="compilers at a time")
    compile_timeout_s: float = Field(default=COMPILE_TIMEOUT_S, gt=0, description="limit of one compilation, in seconds")
    verify_timeout_s: float = Field(default=VERIFY_TIMEOUT_S, gt=0, description="limit of verifying a candidate on a GPU")
    time_timeout_s: float = Field(default=TIME_TIMEOUT_S, gt=0, description="limit of timing a candidate")
    use_knowledge: bool = Field(default=True, description="whether the knowledge base is searched for each round")
    knowledge: Path | None = Field(default=None, description="folder of the knowledge base; in local by default")
    cutlass: str = Field(default="4.2.0", description="CUTLASS release that the default index holds")
    embedding_model: str = Field(default="default", description="default, or a sentence-transformers model: a name or a folder")
    embedding_device: str = Field(default="cpu", description="where a model other than the default runs: cpu, cuda, cuda:1")
    embedding_precision: str = Field(
        default="float32",
        pattern=r"^(float32|bfloat16|float16)$",
        description="of a model other than the default: float32, bfloat16 or float16",
    )
    index_jobs: int = Field(default_factory=_processors, ge=1, le=256, description="processes that split files")
    chroma_host: str | None = Field(default=None, description="host of a Chroma server; a folder beside the index by default")
    chroma_port: int = Field(default=8000, ge=1, le=65535, description="port of the Chroma server")
    profile: Literal["auto", "leaders", "off"] = Field(
        default="auto",
        description="what Nsight Compute profiles: auto, the winner, and in each round what a model reads; leaders, each round",
    )
    api_key_file: Path | None = Field(default=None, description="file that holds the key of the chat server")
    replay: str | None = Field(default=None, description="run whose recorded replies stand in for a chat server")
    nvcc: str | None = Field(default=None, description="path of nvcc; only host candidates and plans that ask for it need one")
    trust_host: bool = Field(
        default=False, description="whether --host files and published modules, which run code of their own, may be run"
    )
    serve: str | None = Field(
        default=None,
        description="what the plug-in for serving engines serves: 1 (the library that ships), a library, or batch-invariant",
    )
    chat: ChatOptions = ChatOptions()
    emulate: EmulateOptions = EmulateOptions()
    profiler: ProfileOptions = ProfileOptions()

    @model_validator(mode="before")
    @classmethod
    def _nested(cls, values: Any) -> Any:
        return nested(values) if isinstance(values, Mapping) else values

    @model_serializer(mode="wrap")
    def _flat(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        flat: dict[str, Any] = {}
        for name, value in handler(self).items():
            flat |= {FLAT_NAME[name, inner]: held for inner, held in value.items()} if name in GROUPS else {name: value}
        return flat

    @property
    def local_dir(self) -> Path:
        """The folder of all that is locked. Of several machines with one home, each has its own."""
        return self.local or self.home

    @property
    def checkpoint_path(self) -> Path:
        return self.local_dir / "checkpoints.sqlite"

    @property
    def locks_dir(self) -> Path:
        return self.local_dir / "locks"

    @property
    def runs_dir(self) -> Path:
        return self.home / "runs"

    def replayed(self) -> dict[str, Any]:
        """What another run takes over from this one, by flat names; what was not set is left out."""
        return {name: value for name, value in self.model_dump().items() if name in REPLAYED and value is not None}

    def travelled(self) -> "RunSettings":
        """As a run of another machine keeps them: without what is the user's own, and without text of other versions."""
        kept = {name: value for name, value in self.model_dump().items() if not users_own(name, value)}
        kept = {name: value for name, value in kept.items() if name in _KNOWN or isinstance(value, bool | int | float)}
        if "/" in self.schedule_prior:
            kept["schedule_prior"] = Path(self.schedule_prior).stem
        return RunSettings.model_validate({**kept, "cutlass": self.cutlass})


_KNOWN = frozenset({*RunSettings.model_fields, *FLAT})
