"""Ids become names of files, and names become text of exported sources: what does not look like one is refused."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from cudal2_agent.contract.base import Name, RunId, Sha256
from cudal2_agent.contract.plan.plan import ResolvedLaunch
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest, PreparedKernel
from cudal2_agent.contract.records.trajectory import RunRecord, Step

PLACES = ("../x", "/tmp/x", "a/../b", "..", ".", "", "a\0b", "a\nb", "\x1b[2J", "~", "-rf", " a", "x" * 200)


@pytest.mark.parametrize("text", [*PLACES, "a/b", "ü", "a b"])
def test_a_run_id_is_a_name_of_a_file(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(RunId).validate_python(text)


@pytest.mark.parametrize("text", [*PLACES, "A" * 64, "a" * 63, "a" * 65, "a" * 64 + "\n"])
def test_a_hash_is_hexadecimal(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Sha256).validate_python(text)


@pytest.mark.parametrize(
    "text", ["", 'a"; system("x"); "', "a\nb", "$(x)", "${X}", "<b>", "a`b`", "a\\", "a'b", "{a}", "x" * 200]
)
def test_a_name_is_harmless_in_a_source(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(text)


def test_ids_and_names_that_occur_are_allowed() -> None:
    for run_id in ("4096x1024x512-20261123-010000-ab12", "run-1", "64x64x64-run"):
        assert TypeAdapter(RunId).validate_python(run_id) == run_id
    for name in ("H100 80GB HBM3", "A100-SXM4-80GB", "RTX PRO 6000 Blackwell", "h200-offline-2026-11-27", "Orin (nvgpu)"):
        assert TypeAdapter(Name).validate_python(name) == name


@pytest.mark.parametrize(
    ("record", "field", "kind"),
    [
        (RunRecord, "run_id", RunId),
        (Step, "run_id", RunId),
        (LibraryEntry, "source_sha256", Sha256),
        (LibraryEntry, "cubin_sha256", Sha256 | None),
        (PreparedKernel, "source_sha256", Sha256),
        (PreparedKernel, "cubin_sha256", Sha256),
        (LibraryManifest, "name", Name),
        (LibraryManifest, "chip", Name),
    ],
)
def test_records_from_outside_use_them(record: Any, field: str, kind: Any) -> None:
    own = TypeAdapter(kind).json_schema()
    held = record.model_json_schema()["properties"][field]
    assert {key: held[key] for key in held if key not in ("title", "default")} == own


def test_the_entry_of_a_plan_beside_a_library_is_an_identifier() -> None:
    launch = {"grid": (1, 1, 1), "block": (1, 1, 1), "cluster": (1, 1, 1), "dynamic_smem": 0, "programmatic": False, "args": ()}
    assert ResolvedLaunch.model_validate({**launch, "entry": "k"}).entry == "k"
    with pytest.raises(ValidationError):
        ResolvedLaunch.model_validate({**launch, "entry": 'k", x); system("y'})
