"""Settings, merged once: defaults < cudal2.toml < CUDAL2_* < flags. Nothing else reads the environment."""

import os
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource

from contract.errors import UsageError
from contract.options import (
    ChatOptions,
    CompileOptions,
    EmulateOptions,
    ProfileOptions,
    TimeOptions,
    VerifyOptions,
    WorkerOptions,
)

CONFIG_FILE = "cudal2.toml"


def _default_home() -> Path:
    return Path.home() / ".cudal2"


class Settings(BaseSettings):
    """The resolved settings of one process; frozen, saved beside each run."""

    model_config = SettingsConfigDict(
        env_prefix="CUDAL2_", toml_file=CONFIG_FILE, frozen=True, extra="forbid", env_ignore_empty=True
    )

    home: Path = Field(default_factory=_default_home, description="folder for the store, the caches and the runs")
    store: str | None = Field(default=None, description="SQLAlchemy URL of the trajectory store; SQLite in home by default")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|none|emulator|cuda:\d+)$",
        description="auto (a GPU, else the emulator), emulator, cuda:N, or none",
    )
    policy: str = "schedule"
    budget: int = Field(default=96, ge=1, le=100_000, description="candidates a run may evaluate")
    minutes: float = Field(default=4.0, gt=0, description="wall-clock minutes a run may take")
    round_size: int = Field(default=8, ge=1, le=256, description="candidates proposed at a time")
    seed: int = Field(default=0, description="seed of the search")
    verify_seed: int | None = Field(
        default=None, description="seed of verification's data and schedules; drawn anew by default"
    )
    compile_jobs: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1, le=256)
    compile_timeout_s: float = Field(default=120.0, gt=0)
    verify_timeout_s: float = Field(default=30.0, gt=0)
    emulate_timeout_s: float = Field(default=180.0, gt=0, description="limit of one candidate's proof on the emulator")
    time_timeout_s: float = Field(default=120.0, gt=0)
    rounds: int = Field(default=21, ge=3, description="paired timing rounds of the final measurement")
    quick_rounds: int = Field(default=7, ge=3, description="paired timing rounds while searching")
    use_knowledge: bool = Field(default=True, description="whether candidates are written with what the knowledge base says")
    knowledge: Path | None = Field(default=None, description="folder of the knowledge base; in home by default")
    cutlass: str = Field(default="4.2.0", description="CUTLASS release that the default index holds")
    embedding_model: str = Field(default="default", description="default, or a sentence-transformers model: a name or a folder")
    embedding_device: str = Field(default="cpu", description="where another model than the default one runs: cpu, cuda, cuda:1")
    embedding_precision: str = Field(default="float32", pattern=r"^(float32|bfloat16|float16)$")
    index_jobs: int = Field(default_factory=lambda: os.cpu_count() or 1, ge=1, le=256, description="processes that split files")
    chroma_host: str | None = Field(default=None, description="host of a Chroma server; a folder beside the index by default")
    chroma_port: int = Field(default=8000, ge=1, le=65535)
    profile: Literal["auto", "leaders", "off"] = Field(
        default="auto",
        description="what Nsight Compute looks at: auto, the winner, and each round what a model reads; leaders, each round",
    )
    profile_timeout_s: float = Field(default=60.0, gt=0)
    ncu: str | None = Field(default=None, description="path of ncu; found on PATH and in the usual places by default")
    use_diagnosis: bool = Field(default=True, description="whether the schedule policy follows the diagnosis")
    model: str | None = Field(default=None, description="model that the chat policy asks for")
    base_url: str | None = Field(default=None, description="address of an OpenAI-compatible server, /v1 included")
    api_key: SecretStr | None = Field(default=None, description="key of the chat server; from the environment, never stored")
    api_key_file: Path | None = Field(default=None, description="file that holds the key of the chat server")
    openai_key: SecretStr | None = Field(
        default=None, validation_alias="OPENAI_API_KEY", description="used where the chat server is OpenAI's own, nowhere else"
    )
    chat_samples: int = Field(default=4, ge=1, le=64, description="replies asked for a round")
    chat_parallel: int = Field(default=4, ge=1, le=64, description="requests under way at once")
    chat_temperature: float | None = Field(default=0.8, ge=0, le=2)
    chat_turns: int = Field(default=1, ge=0, description="how often one reply is sent back because of its form")
    chat_repairs: int = Field(default=3, ge=0, description="how often one candidate is rewritten after a failure")
    chat_prompt_tokens: int = Field(default=24_000, ge=512, description="what a prompt's optional parts must fit in")
    chat_reply_tokens: int = Field(default=16_384, ge=16, description="limit of one reply")
    chat_first_byte_s: float = Field(default=120.0, gt=0)
    chat_reply_s: float = Field(default=600.0, gt=0)
    chat_retries: int = Field(default=4, ge=0, description="tries after the first where a server is busy or fails")
    tokens: int | None = Field(default=2_000_000, ge=1, description="tokens that a run may spend on chat")
    money: float | None = Field(default=None, gt=0, description="money that a run may spend on chat, by the prices set")
    chat_minutes: float | None = Field(default=None, gt=0, description="wall-clock that a run may spend waiting for chat")
    prompt_price: float = Field(default=0.0, ge=0, description="price of a million prompt tokens")
    reply_price: float = Field(default=0.0, ge=0, description="price of a million reply tokens")
    replay: str | None = Field(default=None, description="run whose recorded replies stand in for a chat server")
    nvcc: str | None = Field(default=None, description="path of nvcc; only host candidates and plans that ask for it need one")
    trust_host: bool = Field(default=False, description="whether --host files, which run code of their own, may be run")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the signature is pydantic-settings')
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.home / 'trajectories.sqlite'}"

    @property
    def checkpoint_path(self) -> Path:
        return self.home / "checkpoints.sqlite"

    @property
    def runs_dir(self) -> Path:
        return self.home / "runs"

    @property
    def knowledge_dir(self) -> Path:
        return self.knowledge or self.home / "knowledge"

    def recorded(self) -> dict[str, Any]:
        """The settings as plain values, to be saved beside a run; keys and the store's password are left out."""
        values = self.model_dump(mode="json", exclude={"api_key", "openai_key"})
        if self.store:
            values["store"] = re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", self.store)
        return values

    def compile_options(self) -> CompileOptions:
        return CompileOptions(
            cache_dir=str(self.home / "cache" / "compile"),
            jobs=self.compile_jobs,
            timeout_s=self.compile_timeout_s,
            nvcc=self.nvcc,
        )

    def verify_options(self) -> VerifyOptions:
        return VerifyOptions(seed=self.verify_seed, timeout_s=self.verify_timeout_s)

    def emulate_options(self) -> EmulateOptions:
        return EmulateOptions(timeout_s=self.emulate_timeout_s)

    def time_options(self, *, full: bool) -> TimeOptions:
        rounds = self.rounds if full else self.quick_rounds
        return TimeOptions(rounds=rounds, all_baselines=full, side=full, timeout_s=self.time_timeout_s)

    def profile_options(self) -> ProfileOptions:
        return ProfileOptions(ncu=self.ncu, timeout_s=self.profile_timeout_s)

    def chat_options(self) -> ChatOptions:
        """Raises: UsageError where no model is named."""
        if not self.model:
            raise UsageError("the chat policy needs a model; name it with --model, and a server with --base-url")
        return ChatOptions(
            model=self.model,
            base_url=self.base_url,
            samples=self.chat_samples,
            parallel=self.chat_parallel,
            temperature=self.chat_temperature,
            turns=self.chat_turns,
            repairs=self.chat_repairs,
            prompt_tokens=self.chat_prompt_tokens,
            reply_tokens=self.chat_reply_tokens,
            first_byte_s=self.chat_first_byte_s,
            reply_s=self.chat_reply_s,
            retries=self.chat_retries,
            tokens=self.tokens,
            money=self.money,
            minutes=self.chat_minutes,
            prompt_price=self.prompt_price,
            reply_price=self.reply_price,
        )

    def worker_options(self) -> WorkerOptions:
        index = int(self.device.partition(":")[2]) if self.device.startswith("cuda:") else 0
        return WorkerOptions(device=index, readable=(str((self.home / "cache").resolve()),))


def load_settings(**flags: Any) -> Settings:
    """Settings with the flags that were given (None means not given). Raises: UsageError naming the wrong one."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"setting {where!r}: {first['msg']} (from a flag, CUDAL2_{where.upper()} or {CONFIG_FILE})") from exc
    except ValueError as exc:  # a TOML file that does not parse
        raise UsageError(f"{CONFIG_FILE}: {exc}") from exc
