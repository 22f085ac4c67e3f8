"""Candidates, builds, chunks, arch tags and file keys: what records fill in, and what others rely on."""

import json

import pytest

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records import build
from cudal2_agent.contract.records.build import Built
from cudal2_agent.contract.records.candidate import SHORT_CHARS, Candidate, Origin
from cudal2_agent.contract.records.knowledge import Chunk, arch_number, file_key, fits
from cudal2_agent.contract.records.task import Arch, GemmTask
from tests.doubles import INSPECTION, TASK, candidate
from tests.sandbox.building.build_kernels import host


def test_a_label_shows_the_axes_in_use() -> None:
    schedule = {"family": "f", "block_m": 64, "block_n": 32, "block_k": 16, "stages": 4, "splits": 1, "tma": True, "pdl": False}
    one = candidate(0).model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": schedule})})
    assert one.label == "f 64x32x16 stages=4 tma"
    bare = candidate(0).model_copy(update={"origin": Origin(policy="file")})
    assert bare.label == f"file {bare.id[:8]}"


def test_a_short_name_is_the_label_as_far_as_it_fits() -> None:
    schedule = {"family": "f", "block_m": 64, "block_n": 32, "block_k": 16, "stages": 4, "splits": 2, "tma": True}
    one = candidate(0).model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": schedule})})
    assert one.short_name == one.label == "f 64x32x16 stages=4 splits=2 tma"
    longer = {**schedule, "programmatic": True}
    more = one.model_copy(update={"origin": Origin.model_validate({"policy": "schedule", "schedule": longer})})
    assert more.short_name == "f 64x32x16 stages=4 splits=2 tma …"
    assert len(more.short_name) <= SHORT_CHARS < len(more.label)
    assert candidate(0).model_copy(update={"origin": Origin(policy="chat")}).short_name == f"chat {candidate(0).id[:8]}"


def test_an_id_follows_each_part_of_the_code_and_no_other() -> None:
    one = candidate(0)
    launch = one.plan.launches[0].model_copy(update={"programmatic": not one.plan.launches[0].programmatic})
    plan = one.plan.model_copy(update={"launches": (launch, *one.plan.launches[1:])})
    changes = ({}, {"source": one.source + " "}, {"flags": ("-DX",)}, {"compiler": "nvcc"}, {"plan": plan})
    assert len({one.model_copy(update=change).id for change in changes}) == len(changes)
    assert one.model_copy(update={"origin": Origin(policy="other")}).id == one.id


@pytest.mark.parametrize("mark", ["\ufeff", "\ufeff\ufeff"])
def test_a_byte_order_mark_is_no_part_of_a_source(mark: str) -> None:
    """Whatever a source comes from: a file, a reply, a stored or an imported step."""
    one = candidate(0)
    marked = Candidate.model_validate({**one.model_dump(), "source": mark + one.source})
    assert marked == one
    assert marked.id == one.id
    assert Candidate.model_validate_json(marked.model_dump_json().replace('"source":"', f'"source":"{mark}')) == one
    assert host(mark + "int launch();") == host("int launch();")
    inside = one.source + mark
    assert Candidate.model_validate({**one.model_dump(), "source": inside}).source == inside


SMS = 132
ONE = candidate(1)
PLAN = resolve(ONE.plan, TASK, LIMITS[TASK.arch], SMS)
BUILT = Built(candidate=ONE, inspection=INSPECTION, artifact_path="k.cubin", cached=True, seconds=0.5, task=TASK, plan=PLAN)


def test_the_plan_of_the_build_is_not_resolved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "resolve", None)
    again = Built.model_validate_json(BUILT.model_dump_json())
    assert again == BUILT
    assert again.plan_for(TASK, SMS) == PLAN


def test_a_record_of_an_older_version_is_filled_in() -> None:
    fields = json.loads(BUILT.model_dump_json())
    del fields["task"], fields["plan"]
    old = Built.model_validate(fields)
    assert old.plan is None
    assert old.plan_for(TASK, SMS) == PLAN


@pytest.mark.parametrize(
    ("task", "sms"),
    [(TASK, SMS - 1), (TASK.model_copy(update={"m": TASK.m * 2}), SMS), (GemmTask(m=8, n=8, k=8, arch=Arch.SM_90A), SMS)],
)
def test_another_task_or_chip_gets_a_plan_of_its_own(task: GemmTask, sms: int) -> None:
    assert BUILT.plan_for(task, sms) == resolve(ONE.plan, task, LIMITS[task.arch], sms)


def test_a_host_candidate_has_no_plan() -> None:
    built = Built(candidate=host("int launch();"), inspection=INSPECTION, artifact_path="", cached=True, seconds=0.0, task=TASK)
    assert built.plan_for(TASK, SMS) is None


def chunk(text: str) -> Chunk:
    return Chunk(release="r-1", path="a.hpp", start_line=1, end_line=2, symbol="f", kind="function", text=text)


def test_tokens_are_never_counted_short() -> None:
    assert [chunk("x" * length).tokens for length in (0, 1, 7, 8)] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("tags", "arch", "holds"),
    [
        ((), Arch.SM_90A, True),
        (("sm_90",), None, True),
        (("sm_90",), Arch.SM_90A, True),
        (("sm_100",), Arch.SM_90A, False),
        (("sm_80", "sm_90"), Arch.SM_80, True),
        (("sm_80",), Arch.SM_86, True),
        (("sm_80",), Arch.SM_89, True),
        (("sm_80",), Arch.SM_90A, False),
        (("sm_89",), Arch.SM_86, False),
    ],
)
def test_what_holds_for_a_target(tags: tuple[str, ...], arch: Arch | None, holds: bool) -> None:
    assert fits(tags, arch) is holds


def test_an_arch_is_known_by_its_number() -> None:
    assert {arch_number(arch) for arch in ("sm_90", "sm_90a", Arch.SM_90A)} == {90}


def test_a_file_version_is_another_where_path_content_or_splitter_is() -> None:
    keys = {file_key(*each) for each in (("a", "1", "s-1"), ("b", "1", "s-1"), ("a", "2", "s-1"), ("a", "1", "s-2"))}
    assert len(keys) == 4
