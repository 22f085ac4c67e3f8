"""Differences: changes are reported with their meaning; noise and quantities that one side lacks are not."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudal2_agent.contract.records.profile import Difference, LaunchProfile, Profile
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.diagnosis.differences import MAX_CHANGES, QUANTITIES, explain
from cudal2_agent.sandbox.profiling.metric_set import load_metric_set

H200: list[dict[str, Any]] = json.loads((Path(__file__).parent / "h200_kernels.json").read_text())
BEFORE = {
    "duration_ns": 10_000.0, "tensor_pct": 30.0, "stall_long_scoreboard": 6.0, "stall_barrier": 2.0, "instructions": 1e6,
    "l2_read_sectors": 1e6, "l2_pct": 50.0, "smem_wavefronts": 1e6, "smem_pct": 30.0, "smem_conflicts": 100.0,
    "local_load_instructions": 0.0, "issue_pct": 20.0, "active_cycles": 9e3, "active_cycles_max": 1e4,
}  # fmt: skip
DERIVED = {"spread_pct"}


def profile(*launches: dict[str, float]) -> Profile:
    records = tuple(LaunchProfile(entry="gemm", grid=(1, 1, 1), block=(32, 1, 1), metrics=metrics) for metrics in launches)
    return Profile(tool="ncu", metric_set="sm_90a", launches=records, seconds=1.0)


def changes(**after: float) -> dict[str, Difference]:
    return {difference.quantity: difference for difference in explain(profile(BEFORE), profile(BEFORE | after))}


def test_equal_counters_differ_in_nothing() -> None:
    assert explain(profile(BEFORE), profile(BEFORE)) == ()


def test_a_deeper_pipeline_is_told_as_such() -> None:
    told = changes(stall_long_scoreboard=4.0, tensor_pct=75.0, duration_ns=6_000.0)
    assert list(told) == ["duration_ns", "tensor_pct", "stall_long_scoreboard"]
    assert told["stall_long_scoreboard"].meaning.startswith("fewer warps wait for gmem")
    assert (told["duration_ns"].before, told["duration_ns"].after, told["duration_ns"].unit) == (10_000.0, 6_000.0, "ns")
    assert "better" in told["tensor_pct"].meaning


def test_a_change_the_other_way_means_the_contrary() -> None:
    more, less = changes(stall_long_scoreboard=9.0), changes(stall_long_scoreboard=2.0)
    assert more["stall_long_scoreboard"].meaning.startswith("more")
    assert less["stall_long_scoreboard"].meaning.startswith("fewer")


@pytest.mark.parametrize(
    "noise",
    [
        {"duration_ns": 10_200.0},
        {"tensor_pct": 31.0},
        {"stall_long_scoreboard": 6.2},
        {"l2_read_sectors": 1.05e6},
        {"smem_conflicts": 10_000.0},  # from one in a hundred passes: a factor of 100 has no meaning
        {"local_load_instructions": 100.0},
    ],
)
def test_what_only_varies_is_not_told(noise: dict[str, float]) -> None:
    assert changes(**noise) == {}


def test_what_appears_from_nothing_is_told() -> None:
    assert set(changes(smem_conflicts=500_000.0)) == {"smem_conflicts"}
    assert set(changes(local_load_instructions=50_000.0)) == {"local_load_instructions"}


def test_traffic_of_an_idle_resource_is_not_told() -> None:
    idle = BEFORE | {"l2_pct": 1.0}
    assert explain(profile(idle), profile(idle | {"l2_read_sectors": 9e6})) == ()
    assert set(changes(l2_read_sectors=9e6)) == {"l2_read_sectors"}


def test_evenness_is_told_from_the_cycles() -> None:
    assert changes(active_cycles=5e3)["spread_pct"].meaning == "SMs share the work less evenly"


def test_waits_are_compared_between_kernels_of_one_kind_only() -> None:
    roles = BEFORE | {"wgmma_instructions": 10.0, "stall_barrier": 9.0, "stall_long_scoreboard": 1.0}
    assert explain(profile(BEFORE), profile(roles)) == ()
    assert {difference.quantity for difference in explain(profile(roles), profile(roles | {"stall_barrier": 1.0}))} == set()
    told = explain(profile(roles), profile(roles | {"stall_long_scoreboard": 5.0}))
    assert [difference.quantity for difference in told] == ["stall_long_scoreboard"]


def test_launches_add_up_or_are_weighed_by_time() -> None:
    split = profile(BEFORE | {"duration_ns": 9_000.0}, {**BEFORE, "duration_ns": 1_000.0, "tensor_pct": 0.0})
    told = {difference.quantity: difference for difference in explain(split, profile(BEFORE))}
    assert told["l2_read_sectors"].before == 2e6
    assert told["tensor_pct"].before == pytest.approx(27.0)


def test_what_one_launch_lacks_is_left_out() -> None:
    without = {name: value for name, value in BEFORE.items() if name != "tensor_pct"}
    told = explain(profile(BEFORE), profile({**BEFORE, "tensor_pct": 90.0}, without))
    assert "tensor_pct" not in {difference.quantity for difference in told}


def test_loads_that_are_not_there_use_nothing_badly() -> None:
    """The tool reports 0 bytes per sector for a kernel without such loads."""
    plain = BEFORE | {"load_bytes_a_sector": 32.0}
    assert explain(profile(plain), profile(plain | {"load_bytes_a_sector": 0.0})) == ()
    assert len(explain(profile(plain), profile(plain | {"load_bytes_a_sector": 8.0}))) == 1


def test_from_small_tiles_to_ping_pong_on_an_h200() -> None:
    """ncu's counters of two kernels of 4096x1024x512: 64x32 tiles, and 128x128 ping-pong tiles in clusters of two."""
    told = {difference.quantity: difference for difference in explain(real(1), real(0))}
    assert next(iter(told)) == "duration_ns"
    assert told["l2_read_sectors"].meaning.startswith("operands are read from L2 less often")
    assert told["tensor_pct"].after > 2 * told["tensor_pct"].before


def test_quantities_are_counted_ones() -> None:
    known = {name: spec.unit for name, spec in load_metric_set(Arch.SM_90A).metrics.items()}
    for quantity in QUANTITIES:
        if quantity.name not in DERIVED:
            assert quantity.unit == known[quantity.name] or quantity.kind == "waits", quantity.name
        assert quantity.beside in {"", *known}
        assert quantity.where in {"", *known}


METRICS = st.dictionaries(
    st.sampled_from(sorted(load_metric_set(Arch.SM_90A).metrics)), st.one_of(st.floats(), st.floats(0, 1e6), st.just(0.0))
)
PROFILES = st.lists(METRICS, max_size=3).map(lambda launches: profile(*launches))


@given(before=PROFILES, after=PROFILES)
def test_any_two_profiles_can_be_compared(before: Profile, after: Profile) -> None:
    there, back = explain(before, after), explain(after, before)
    assert len(there) <= MAX_CHANGES
    assert {difference.quantity for difference in there} == {difference.quantity for difference in back}
    assert len({difference.quantity for difference in there}) == len(there)
    assert explain(before, before) == ()


def real(index: int) -> Profile:
    return profile(H200[index]["metrics"])
