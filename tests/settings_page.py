"""The page docs/guide/settings.md, written from the settings.

Run from the repository's root: python -m tests.settings_page docs/guide/settings.md
"""

import argparse
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from cudal2_agent.agent.cli.main import app
from cudal2_agent.contract.settings.run_settings import FLAT, GROUPS, NOT_FROM_FOLDER, RunSettings, _default_home, _processors
from cudal2_agent.contract.settings.settings import Settings

PAGE = "docs/guide/settings.md"
# Flags of `optimize` that set a setting of another name. Flags of its own name are found.
RENAMED = {"prior": "schedule_prior", "replies": "chat_replies", "no_knowledge": "use_knowledge", "no_profile": "profile"}
# Settings that only another command has a flag for.
ELSEWHERE = {
    "verify_seed": ("verify", "seed"),
    "trust_host": ("bench", "trust_host"),
    "compile_jobs": ("library build", "jobs"),
}
# What a default that is computed is called.
COMPUTED: dict[Callable[..., Any], str] = {_default_home: "`~/.cudal2`", _processors: "processors"}

HEAD = """# Settings

<!-- written by `python -m tests.settings_page docs/guide/settings.md` -->

A setting has the first value that is found in this order:
1. the flag of the command;
2. the environment variable; an empty one counts as not set;
3. `cudal2.toml` in the working folder: `budget = 8`, or `samples = 2` in a table `[chat]`; or the file that the variable
   `CUDAL2_CONFIG` names by its absolute path;
4. `choices.toml` in the home folder, which `prior use` writes;
5. the default.

A wrong value or an unknown name ends the command with one line and exit code 2. A retired setting is skipped with a notice.

`cudal2.toml` in the working folder may have come with a checkout or an archive. What names programs, servers, keys, folders or
trust is therefore not taken from it, and one notice names what was left out: USERS_OWN. Flags, the environment and the file of
`CUDAL2_CONFIG` set these.

The resolved settings are saved beside each run, without keys. A resumed or replayed run takes
what its outcome depends on from its record, unless a flag says otherwise.

Times end in `_s` and are seconds. `none` means that nothing is set: a cap then caps nothing.
"""


def fields() -> dict[str, FieldInfo]:
    """Every setting by its flat name, in the order of the records."""
    groups = {name: type(getattr(RunSettings(), name)).model_fields for name in GROUPS}
    plain = {name: field for name, field in Settings.model_fields.items() if name not in GROUPS}
    return plain | {name: groups[group][inner] for name, (group, inner) in FLAT.items()}


def flags() -> dict[str, str]:
    """The flag of each setting that has one."""
    options = {RENAMED.get(name, name): flag for name, flag in options_of("optimize").items()}
    found = {name: f"`{flag}`" for name, flag in options.items() if name in fields()}
    return found | {name: f"`{verb} {options_of(verb)[flag]}`" for name, (verb, flag) in ELSEWHERE.items()}


def options_of(verb: str) -> dict[str, str]:
    """The options of a command, by the names of its parameters."""
    command: Any = typer.main.get_command(app)
    for word in verb.split():
        command = command.commands[word]
    return {option.name: option.opts[0] for option in command.params if option.opts[0].startswith("--")}


def variable(name: str, field: FieldInfo) -> str:
    return str(field.validation_alias or f"CUDAL2_{name.upper()}")


def type_of(field: FieldInfo) -> str:
    """The type in words, with the values that are allowed."""
    members = [kind for kind in _members(field.annotation) if kind is not type(None)]
    (kind,) = members
    if get_origin(kind) is Literal:
        return ", ".join(str(value) for value in get_args(kind))
    words = {bool: "true, false", int: "whole", float: "number", str: "text", Path: "path", SecretStr: "text"}[kind]
    limits = {key: value for limit in field.metadata for key, value in _limits(limit)}
    if "le" in limits:
        return f"{words}, {limits['ge']}–{limits['le']}"
    bound = next((f", {sign} {limits[key]:g}" for key, sign in (("ge", "≥"), ("gt", ">")) if key in limits), "")
    return words + bound


def _members(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _limits(limit: Any) -> Iterator[tuple[str, Any]]:
    yield from ((key, getattr(limit, key)) for key in ("ge", "gt", "le") if getattr(limit, key, None) is not None)


def default_of(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return COMPUTED[field.default_factory]
    value = field.default
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value not in (None, "") else "none"


def row(name: str, field: FieldInfo, flag: str) -> str:
    cells = (f"`{name}`", f"`{variable(name, field)}`", type_of(field), default_of(field), flag, str(field.description))
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """The whole page. Raises: KeyError for a type or a computed default that it has no words for."""
    shown, named = fields(), flags()
    chat = [name for name in shown if FLAT.get(name, ("", ""))[0] == "chat" or name.endswith(("_key", "key_file"))]
    parts = [HEAD.replace("USERS_OWN", ", ".join(f"`{name}`" for name in sorted(NOT_FROM_FOLDER)))]
    for title, names in (("A run", [name for name in shown if name not in chat]), ("The chat policy", chat)):
        lines = [f"## {title}", "| setting | variable | type | default | flag | meaning |", "|---|---|---|---|---|---|"]
        parts.append("\n".join([*lines, *(row(name, shown[name], named.get(name, "")) for name in names)]) + "\n")
    return re.sub(r"  +", " ", "\n".join(parts))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("page", type=Path)
    parser.parse_args().page.write_text(page(), encoding="utf-8")
