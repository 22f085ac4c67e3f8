"""Settings, merged once: defaults < choices < cudal2.toml < CUDAL2_* < flags. Nothing else reads the environment.

`cudal2.toml` in the working folder may have come with what else is in it, so it cannot set what is the user's own. Choices are
what a command keeps for later ones, such as `prior use`: a file in the home folder, which only commands write.
"""

import json
import logging
import os
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import MAX_SETTINGS_BYTES, parse_toml, read_file
from cudal2_agent.contract.settings.options import (
    FULL_ROUNDS,
    QUICK_ROUNDS,
    RACE_TIME,
    CompileOptions,
    TimeOptions,
    VerifyOptions,
    WorkerOptions,
)
from cudal2_agent.contract.settings.run_settings import (
    FLAT,
    FLAT_NAME,
    GROUPS,
    RETIRED,
    RunSettings,
    from_folder,
    nested,
)
from cudal2_agent.contract.whole_file import whole_file

CONFIG_FILE = "cudal2.toml"
CONFIG_VARIABLE = "CUDAL2_CONFIG"  # names a file that may set everything, in place of the one in the working folder
CHOICES_FILE = "choices.toml"  # in the home folder
_PREFIX = "CUDAL2_"
_OPENAI = "OPENAI_API_KEY"
_KEYS = frozenset({"api_key", "openai_key"})
_logger = logging.getLogger(__name__)


@cache
def _tell_retired(name: str) -> None:
    _logger.warning("setting %r of an older version has no effect any more and is skipped", name)


def _in_use(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by flat or nested names, without those that are retired."""
    kept = dict(values)
    for name, (group, inner) in RETIRED.items():
        if kept.pop(name, None) is not None:
            _tell_retired(name)
        if isinstance(held := kept.get(group), Mapping) and inner in held:
            kept[group] = {key: value for key, value in held.items() if key != inner}
            _tell_retired(name)
    return kept


class _Variables(EnvSettingsSource):
    """The environment, with the flat names of grouped settings."""

    def __call__(self) -> dict[str, Any]:
        variables = {name: self.env_vars.get(f"{_PREFIX}{name}".lower()) for name in (*FLAT, *RETIRED)}
        flat = {name: value for name, value in variables.items() if value is not None}
        return nested(_in_use({**super().__call__(), **flat}))


class _TomlFile(TomlConfigSettingsSource):
    """A settings file, read under limits. Raises: UsageError."""

    def _read_file(self, file_path: Any) -> dict[str, Any]:
        try:
            return parse_toml(read_file(file_path, MAX_SETTINGS_BYTES))
        except (OSError, ValueError) as exc:
            raise UsageError(f"{file_path}: {exc.strerror if isinstance(exc, OSError) else exc}") from exc


class _ConfigFile(_TomlFile):
    """`cudal2.toml`, or the file that the environment names, with flat names or a table for each group."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        self._allowed = os.environ.get(CONFIG_VARIABLE) or None
        if self._allowed and not (os.path.isabs(self._allowed) and os.path.isfile(self._allowed)):
            raise UsageError(f"{CONFIG_VARIABLE}={self._allowed}: name a file by its absolute path")
        super().__init__(settings_cls, Path(self._allowed or CONFIG_FILE))

    def __call__(self) -> dict[str, Any]:
        found = nested(_in_use(super().__call__()))
        return found if self._allowed else _without_users_own(found)


@cache
def _tell_left_out(names: tuple[str, ...]) -> None:
    _logger.warning(
        "%s in the working folder sets %s: what names programs, servers, keys or folders is not taken from there; "
        "if the file is yours, set %s=%s",
        *(CONFIG_FILE, ", ".join(names), CONFIG_VARIABLE, Path(CONFIG_FILE).absolute()),
    )


def _without_users_own(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a file in the working folder may set; a notice names the others."""
    own: list[str] = []
    kept: dict[str, Any] = {}
    for name, value in values.items():
        if not from_folder(name, value) or name.upper() == _OPENAI:
            own.append(name)
        elif name in GROUPS and isinstance(value, Mapping):
            flat = {inner: FLAT_NAME.get((name, inner), inner) for inner in value}
            own += [flat[inner] for inner in value if not from_folder(flat[inner], value[inner])]
            kept[name] = {inner: held for inner, held in value.items() if from_folder(flat[inner], held)}
        else:
            kept[name] = value
    if own:
        _tell_left_out(tuple(sorted(own)))
    return kept


class Settings(BaseSettings, RunSettings):
    """The resolved settings of one process; frozen, saved beside each run without their keys."""

    model_config = SettingsConfigDict(
        env_prefix=_PREFIX, toml_file=CONFIG_FILE, frozen=True, extra="forbid", env_ignore_empty=True
    )

    api_key: SecretStr | None = Field(default=None, description="key of the chat server; from the environment, never stored")
    openai_key: SecretStr | None = Field(
        default=None, validation_alias=_OPENAI, description="used where the chat server is OpenAI's own, nowhere else"
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (the signature is pydantic-settings')
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        above = (
            InitSettingsSource(settings_cls, nested(_in_use(init_settings()))),
            _Variables(settings_cls),
            _ConfigFile(settings_cls),
        )
        home = next((found for source in above if (found := source().get("home"))), None)
        path = choices_path(Path(home) if home is not None else RunSettings().home)
        return *above, _TomlFile(settings_cls, path)

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:///{self.local_dir / 'trajectories.sqlite'}"

    @property
    def knowledge_dir(self) -> Path:
        return self.knowledge or self.local_dir / "knowledge"

    def recorded(self) -> RunSettings:
        """The settings to be saved beside a run: without keys, and without the store's password."""
        values = self.model_dump(exclude=set(_KEYS))
        if self.store:
            hidden = re.sub(r"(://[^:/@]*:)[^@]*@", r"\1***@", self.store)
            values["store"] = re.sub(r"([?&]password=)[^&]*", r"\1***", hidden)
        return RunSettings.model_validate(values)

    def compile_options(self) -> CompileOptions:
        return CompileOptions(
            cache_dir=str(self.home / "cache" / "compile"),
            jobs=self.compile_jobs,
            timeout_s=self.compile_timeout_s,
            nvcc=self.nvcc,
        )

    def verify_options(self) -> VerifyOptions:
        return VerifyOptions(seed=self.verify_seed, timeout_s=self.verify_timeout_s)

    def time_options(self, *, full: bool) -> TimeOptions:
        rounds = FULL_ROUNDS if full else QUICK_ROUNDS
        return TimeOptions(rounds=rounds, all_baselines=full, side=full, timeout_s=self.time_timeout_s)

    def race_options(self) -> TimeOptions:
        """Options of the race that ends a search: all baselines where the run is reported, else those that results keep."""
        all_baselines = self.race_baselines == "all"
        return RACE_TIME.model_copy(update={"all_baselines": all_baselines, "timeout_s": self.time_timeout_s})

    def worker_options(self) -> WorkerOptions:
        index = int(self.device.partition(":")[2]) if self.device.startswith("cuda:") else 0
        locks = str(self.locks_dir.resolve())
        return WorkerOptions(device=index, readable=(str((self.home / "cache").resolve()),), turns=locks)


def choices_path(home: Path) -> Path:
    return home / CHOICES_FILE


def keep_choice(home: Path, name: str, value: str) -> Path:
    """Keep the value of a setting for later commands, in place of the one before. Raises: UsageError where that fails."""
    path = choices_path(home)
    try:
        kept = parse_toml(read_file(path, MAX_SETTINGS_BYTES)) if path.is_file() else {}
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as place:
            # A JSON string is a basic string of TOML.
            lines = [f"{key} = {json.dumps(held)}\n" for key, held in sorted({**kept, name: value}.items())]
            place.write_text("".join(lines), encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{path} cannot be written: {exc.strerror}; choose another home with CUDAL2_HOME") from exc
    except ValueError as exc:
        raise UsageError(f"{path} is damaged ({exc}); delete it, and choose again") from exc
    return path


def _written(place: tuple[str, ...]) -> str:
    """The name by which a user writes a setting."""
    return next((name for grouped, name in FLAT_NAME.items() if grouped == place[:2]), ".".join(place))


def load_settings(**flags: Any) -> Settings:
    """Settings with the flags that were given (None means not given). Raises: UsageError naming the wrong one."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = _written(tuple(str(part) for part in first["loc"]))
        raise UsageError(f"setting {where!r}: {first['msg']} (from a flag, {_PREFIX}{where.upper()} or {CONFIG_FILE})") from exc
