"""The error tree: one root, and the exit codes that the command line documents."""

import re

import pytest

import cudal2_agent.contract.errors as errors
from cudal2_agent.contract.errors import Cudal2Error, PlanError, UsageError

EXIT_CODES = {
    "Cudal2Error": 1,
    "UsageError": 2,
    "PlanError": 2,
    "MachineError": 1,
    "CompilerMissing": 2,
    "DeviceUnavailable": 2,
    "ProfilerUnavailable": 2,
    "LauncherError": 1,
    "WorkerError": 1,
    "ProfileFailed": 1,
    "EndpointError": 2,
    "TrainingFailed": 1,
    "LibraryError": 2,
    "StoreError": 2,
    "KnowledgeError": 1,
    "SourceError": 2,
    "ModelMismatch": 2,
    "KnowledgeBusy": 1,
}
KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}


def build(kind: type[Cudal2Error]) -> Cudal2Error:
    return PlanError("plan-grid", "said") if kind is PlanError else kind("said", log="long")


def test_the_tree_is_complete() -> None:
    assert set(KINDS) == set(EXIT_CODES)
    assert all(issubclass(kind, Cudal2Error) for kind in KINDS.values())


def test_the_drawing_at_the_top_shows_every_error() -> None:
    drawn = re.findall(r"\b\w+(?:Error|Missing|Unavailable|Mismatch|Busy|Failed)\b", errors.__doc__ or "")
    assert set(drawn) == set(EXIT_CODES)


@pytest.mark.parametrize("name", sorted(EXIT_CODES))
def test_exit_codes_and_messages(name: str) -> None:
    error = build(KINDS[name])
    assert error.exit_code == EXIT_CODES[name]
    assert str(error) == "said"
    assert "long" not in str(error)


def test_a_log_is_kept_beside_the_message() -> None:
    assert UsageError("said", log="long").log == "long"
    assert UsageError("said").log == ""


def test_a_plan_error_carries_its_rule_and_is_the_users() -> None:
    error = PlanError("plan-grid", "said")
    assert error.rule == "plan-grid"
    assert isinstance(error, UsageError)
