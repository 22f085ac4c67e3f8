"""docs/guide/settings.md lists every setting, as the code has it."""

import os
from pathlib import Path
from typing import Any

import pytest
import typer

from cudal2_agent.agent.cli.main import app
from cudal2_agent.contract.settings.settings import Settings
from tests.pages import text
from tests.settings_page import PAGE, fields, flags, options_of, page, type_of, variable

TASK_AND_OUTPUT = {
    *("shape", "accumulate", "element", "layout", "bias", "activation", "gated", "arch", "mode", "out", "resume", "as_json"),
    *("problem", "task_name", "dims", "arithmetic", "training"),
}


def test_the_page_is_current() -> None:
    assert text(PAGE) == page(), f"run python -m tests.settings_page {PAGE}"


def test_every_setting_has_a_line() -> None:
    lines = [line.split(" | ")[0].strip("| `") for line in text(PAGE).splitlines() if line.startswith("| `")]
    assert sorted(lines) == sorted([*Settings().recorded().model_dump(), "api_key", "openai_key"])


@pytest.mark.parametrize("name", fields())
def test_every_setting_says_what_it_is(name: str) -> None:
    assert fields()[name].description
    assert type_of(fields()[name])


@pytest.mark.parametrize("name", fields())
def test_every_variable_sets_its_setting(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for other in [other for other in os.environ if other.upper().startswith("CUDAL2_")]:
        monkeypatch.delenv(other)
    before = _value(name)
    monkeypatch.setenv(variable(name, fields()[name]), "unlikely")
    assert _value(name) != before


def _value(name: str) -> Any:
    """A setting as it is resolved; the error where it is refused."""
    try:
        settings = Settings()
    except ValueError as exc:
        return str(exc)
    return settings.recorded().model_dump().get(name, getattr(settings, name, None))


def test_every_option_of_optimize_is_of_the_task_or_has_a_line() -> None:
    named = {flag.strip("`") for flag in flags().values()}
    assert {flag for name, flag in options_of("optimize").items() if name not in TASK_AND_OUTPUT} <= named


@pytest.mark.parametrize("name", [name for name, flag in flags().items() if flag.startswith("`--") and name != "replay"])
def test_every_flag_sets_its_setting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--replay` alone sets it by the run's record."""
    given: dict[str, Any] = {}

    class Seen(Exception):
        pass

    def made(_: Settings, **values: Any) -> None:
        given.update(values)
        raise Seen

    monkeypatch.setattr(Settings, "__init__", made)  # not `load_settings`, which a module first imported now would keep
    flag = flags()[name].strip("`")
    value = [] if flag.startswith("--no-") else ["1"]
    with pytest.raises(Seen):
        typer.main.get_command(app).main(["optimize", "--shape", "64x64x64", flag, *value], standalone_mode=False)
    assert [key for key, one in given.items() if one is not None] == [name]
