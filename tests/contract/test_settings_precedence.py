"""Settings: defaults < cudal2.toml < CUDAL2_* < flags; an invalid one is refused in one line."""

from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.settings.run_settings import FLAT, GROUPS, NOT_FROM_FOLDER, RunSettings
from cudal2_agent.contract.settings.settings import (
    CONFIG_FILE,
    Settings,
    _tell_left_out,
    choices_path,
    keep_choice,
    load_settings,
)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder and an environment without settings."""
    import os

    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.upper().startswith("CUDAL2_")]:
        monkeypatch.delenv(name)


def configure(text: str) -> None:
    Path(CONFIG_FILE).write_text(text, encoding="utf-8")


def test_each_source_overrides_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    default = Settings.model_fields["budget"].default
    assert load_settings().budget == default
    configure("budget = 11\nseed = 5")
    assert load_settings().budget == 11
    monkeypatch.setenv("CUDAL2_BUDGET", "12")
    assert load_settings().budget == 12
    assert load_settings(budget=13).budget == 13
    assert load_settings(budget=13).seed == 5


def test_a_flag_that_was_not_given_overrides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_POLICY", "portfolio")
    assert load_settings(policy=None).policy == "portfolio"


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_BUDGET", "")
    assert load_settings().budget == Settings.model_fields["budget"].default


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"budget": 0}, "budget"),
        ({"budget": "many"}, "budget"),
        ({"budget": 10**9}, "budget"),
        ({"minutes": 0}, "minutes"),
        ({"minutes": -1.0}, "minutes"),
        ({"minutes": float("nan")}, "minutes"),
        ({"device": "cuda"}, "device"),
        ({"device": "cuda:x"}, "device"),
        ({"device": "cuda:0 "}, "device"),
        ({"round_size": 0}, "round_size"),
        ({"finalists": 0}, "finalists"),
        ({"seed": 1.5}, "seed"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_flag_is_one_line(flags: dict[str, object], name: str) -> None:
    with pytest.raises(UsageError, match=name) as caught:
        load_settings(**flags)
    assert "\n" not in str(caught.value)


def test_a_wrong_variable_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_MINUTES", "soon")
    with pytest.raises(UsageError, match="CUDAL2_MINUTES") as caught:
        load_settings()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "budget = ",
        "budget = 'many'",
        "[budget]\nx = 1",
        "unknown = 1",
        "budget = 1\nbudget = 2",
        "chat = 3\ntokens = 5",
        "a = " + "[" * 5000,
        "x = 1" + " " * 2**20,
    ],
)
def test_a_wrong_file_is_one_line(text: str) -> None:
    configure(text)
    with pytest.raises(UsageError, match=CONFIG_FILE) as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_utf8_is_one_line() -> None:
    Path(CONFIG_FILE).write_bytes(b"policy = '\xff\xfe'")
    with pytest.raises(UsageError, match=CONFIG_FILE):
        load_settings()


@pytest.mark.parametrize("name", sorted(NOT_FROM_FOLDER - {"openai_key"}))
def test_the_working_folder_names_no_program_server_key_or_place(name: str, caplog: pytest.LogCaptureFixture) -> None:
    _tell_left_out.cache_clear()
    before = load_settings()
    value = {"trust_host": "true", "chroma_port": "9"}.get(name, f"'/stranger/{name}'")
    configure(f"seed = 5\n{name} = {value}")
    for _ in range(2):
        assert load_settings() == before.model_copy(update={"seed": 5})
    [notice] = caplog.messages
    assert f"sets {name}:" in notice
    assert f"set CUDAL2_CONFIG={Path(CONFIG_FILE).absolute()}" in notice


@pytest.mark.parametrize(
    "text", ["OPENAI_API_KEY = 'x'", "[chat]\nbase_url = 'http://stranger/v1'", "[profiler]\nncu = '/evil'"]
)
def test_neither_does_it_in_a_table_or_by_another_name(text: str) -> None:
    before = load_settings()
    configure(text)
    assert load_settings() == before


def test_a_file_that_the_environment_names_sets_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure("seed = 5\nbase_url = 'http://mine/v1'\nhome = '/mine'\ntrust_host = true")
    monkeypatch.setenv("CUDAL2_CONFIG", str(Path(CONFIG_FILE).absolute()))
    settings = load_settings()
    assert (settings.seed, settings.chat.base_url, settings.home, settings.trust_host) == (
        5,
        "http://mine/v1",
        Path("/mine"),
        True,
    )
    for wrong in (CONFIG_FILE, str(tmp_path / "missing.toml"), str(tmp_path)):
        monkeypatch.setenv("CUDAL2_CONFIG", wrong)
        with pytest.raises(UsageError, match="name a file by its absolute path"):
            load_settings()


def test_every_setting_of_free_text_is_known_to_be_harmless_or_the_users_own() -> None:
    harmless = {"device", "policy", "schedule_prior", "replay", "embedding_device", "embedding_precision"}
    fields = {name: RunSettings.model_fields[name] for name in RunSettings.model_fields if name not in GROUPS}
    fields |= {name: type(getattr(RunSettings(), group)).model_fields[inner] for name, (group, inner) in FLAT.items()}
    text = {name for name, field in fields.items() if {str, Path} & {field.annotation, *get_args(field.annotation)}}
    assert text - NOT_FROM_FOLDER == harmless


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings().budget = 3  # type: ignore[misc]


def test_places_follow_home(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path / "home")
    assert settings.store_url == f"sqlite:///{tmp_path / 'home' / 'trajectories.sqlite'}"
    assert settings.checkpoint_path.parent == settings.runs_dir.parent == tmp_path / "home"
    assert settings.compile_options().cache_dir.startswith(str(tmp_path))
    assert load_settings(store="postgresql://db/x").store_url == "postgresql://db/x"


def test_slices_carry_what_they_are_given() -> None:
    settings = load_settings(device="cuda:3", compile_jobs=4, nvcc="nvcc")
    assert settings.worker_options().device == 3
    assert load_settings().worker_options().device == 0
    assert settings.compile_options().jobs == 4
    assert settings.compile_options().nvcc == "nvcc"
    full, quick = settings.time_options(full=True), settings.time_options(full=False)
    assert (full.rounds, full.all_baselines, full.side, full.secret) == (21, True, True, None)
    assert (quick.rounds, quick.all_baselines, quick.side) == (7, False, False)
    assert settings.verify_options().seed is None, "drawn anew for each proof"
    assert load_settings(verify_seed=7).verify_options().seed == 7


@pytest.mark.parametrize(
    ("url", "recorded"),
    [
        ("postgresql+psycopg://ann:sesame@host/db", "postgresql+psycopg://ann:***@host/db"),
        ("postgresql+psycopg://host/db?user=ann&password=sesame&x=1", "postgresql+psycopg://host/db?user=ann&password=***&x=1"),
        ("postgresql+psycopg://ann@host:5432/db", "postgresql+psycopg://ann@host:5432/db"),
        ("sqlite:///runs.sqlite", "sqlite:///runs.sqlite"),
    ],
)
def test_what_is_recorded_of_the_settings_has_no_password(url: str, recorded: str) -> None:
    assert load_settings(store=url).recorded().store == recorded


def test_a_choice_is_below_all_other_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "home"))
    assert load_settings().schedule_prior == "auto"
    keep_choice(tmp_path / "home", "schedule_prior", 'a "quoted" \\ name')
    assert load_settings().schedule_prior == 'a "quoted" \\ name'
    keep_choice(tmp_path / "home", "schedule_prior", "analytic")
    assert load_settings().schedule_prior == "analytic"
    configure('schedule_prior = "mine"')
    assert load_settings().schedule_prior == "mine"
    monkeypatch.setenv("CUDAL2_SCHEDULE_PRIOR", "theirs")
    assert load_settings().schedule_prior == "theirs"
    assert load_settings(schedule_prior="flag").schedule_prior == "flag"


def test_choices_are_those_of_the_home_that_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_choice(tmp_path / "one", "schedule_prior", "first")
    keep_choice(tmp_path / "two", "schedule_prior", "second")
    assert load_settings(home=tmp_path / "one").schedule_prior == "first"
    monkeypatch.setenv("CUDAL2_HOME", str(tmp_path / "two"))
    assert load_settings().schedule_prior == "second"


def test_damaged_choices_are_one_line(tmp_path: Path) -> None:
    choices_path(tmp_path).write_text("schedule_prior = ", encoding="utf-8")
    with pytest.raises(UsageError, match=r"choices.toml"):
        load_settings(home=tmp_path)
    with pytest.raises(UsageError, match="is damaged"):
        keep_choice(tmp_path, "schedule_prior", "analytic")
    with pytest.raises(UsageError, match="cannot be written"):
        keep_choice(choices_path(tmp_path), "schedule_prior", "analytic")
