"""The picture of a module's plan: one step to more than sixty, hostile names, bytes, times of a profile, the report's table."""

import xml.etree.ElementTree as ET

import pytest

from cudal2_agent.agent.report.plan_picture import MOST_STEPS, draw_plan, step_rows, times_us
from cudal2_agent.contract.plan.library_call import LibraryCall, ResolvedCall, View
from cudal2_agent.contract.plan.plan import ResolvedLaunch, ResolvedPlan, TensorArg
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.reward.plan_traffic import steps_of
from tests.doubles.modules import relu_of_sum

TASK = relu_of_sum(1024)
EACH = 1024 * 64 * 4


def launch(entry: str, *names: str) -> ResolvedLaunch:
    args = tuple(TensorArg.model_construct(tensor=name) for name in names)
    return ResolvedLaunch.model_construct(
        entry=entry, grid=(1, 1, 1), block=(32, 1, 1), cluster=(1, 1, 1), dynamic_smem=0, programmatic=False, args=args
    )


def plan(count: int) -> ResolvedPlan:
    """Kernels in a row, and a library call before the last one."""
    launches = tuple(launch(f"k{place}", *(("x", "y", "out") if place % 2 else ("x", "out"))) for place in range(count))
    call = LibraryCall(call="mm", inputs=(View(tensor="x"), View(tensor="y")), out=View(tensor="out"))
    calls = (ResolvedCall(before=count - 1, call=call),)
    return ResolvedPlan(launches=launches, workspace_bytes=0, zero=False, zero_bytes=0, calls=calls)


@pytest.mark.parametrize("count", [1, 2, 30, MOST_STEPS - 1, 200])
def test_every_step_is_a_box_in_order(count: int) -> None:
    drawn = ET.fromstring(draw_plan(plan(count), TASK, None))
    texts = [each.text or "" for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    shown = min(count + 1, MOST_STEPS)
    named = [text for text in texts if text.partition(". ")[0].isdigit()]
    assert len(named) == shown
    assert named[0] == ("1. library mm" if count == 1 else "1. kernel k0")
    assert any(text == f"and {count + 1 - shown} more steps" for text in texts) == (count + 1 > MOST_STEPS)
    assert texts[0].startswith(f"{count} kernels and 1 library calls")
    height = int(drawn.attrib["height"])
    assert all(float(each.attrib["y"]) <= height for each in drawn.iter("{http://www.w3.org/2000/svg}text"))


def test_a_library_call_stands_where_it_runs_with_its_bytes() -> None:
    steps = steps_of(plan(3), TASK)
    assert [step.name for step in steps] == ["k0", "k1", "mm", "k2"]
    assert [sum(step.moved.values()) for step in steps] == [2 * EACH, 3 * EACH, 3 * EACH, 2 * EACH]
    assert [row[1] for row in step_rows(plan(3), TASK, None)] == ["kernel k0", "kernel k1", "library mm", "kernel k2"]
    assert step_rows(plan(3), TASK, None)[1][3] == "786 kB"


def test_a_hostile_name_is_text() -> None:
    hostile = '<script>"&'
    drawn = draw_plan(plan(1).model_copy(update={"launches": (launch(hostile, hostile),)}), TASK, None)
    assert "<script" not in drawn
    assert any(hostile in (each.text or "") for each in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text"))


def test_times_are_those_of_a_profile_of_the_same_launches() -> None:
    def best(*entries: str):
        launches = tuple(
            LaunchProfile(entry=entry, grid=(1, 1, 1), block=(1, 1, 1), metrics={"duration_ns": 1500.0 * place})
            for place, entry in enumerate(entries, 1)
        )
        profile = Profile.model_construct(launches=launches)
        return type("Best", (), {"profile": profile})()

    assert times_us(best("k0", "k1"), plan(2)) == {0: 1.5, 1: 3.0}
    assert [row[4] for row in step_rows(plan(2), TASK, best("k0", "k1"))] == ["1.50 us", "", "3.00 us"]
    assert times_us(best("k0", "other"), plan(2)) == {}
    assert times_us(None, plan(2)) == {}
