"""The metric sets: every name exists on its chip, every quantity is readable, and all archs share short names."""

import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.profiling.metric_set import MetricSet, MetricSpec, load_metric_set

NAMES = tomllib.loads((Path(__file__).parent / "ncu_names.toml").read_text())
CHIPS = {Arch.SM_80: "ga100", Arch.SM_86: "ga102", Arch.SM_89: "ad102", Arch.SM_90A: "gh100", Arch.SM_100A: "gb100"}
UNITS = {"ns", "cycle", "%", "warp", "inst", "byte", "sector", "byte/sector", "register/thread", "block", ""}
NEEDS_NO_SUFFIX = "launch__"


@pytest.mark.parametrize("arch", list(Arch))
def test_every_metric_exists_on_the_chip(arch: Arch) -> None:
    known = {name for part in ("launch", "every_chip", CHIPS[arch]) for name in NAMES[part]["names"]}
    assert {base_name(spec) for spec in load_metric_set(arch).metrics.values()} <= known


@pytest.mark.parametrize("arch", list(Arch))
def test_every_quantity_says_what_it_is(arch: Arch) -> None:
    found = load_metric_set(arch)
    assert found.name == arch.value
    assert len({spec.metric for spec in found.metrics.values()}) == len(found.metrics)
    for short, spec in found.metrics.items():
        assert spec.unit in UNITS, short
        assert spec.meaning, short
        assert not spec.meaning.endswith("."), short
        assert ("." in spec.metric) != spec.metric.startswith(NEEDS_NO_SUFFIX), short
        assert spec.unit == "%" or "pct" not in spec.metric, short
        assert not short.endswith("_pct") or spec.unit == "%", short


def test_what_archs_share_they_count_in_the_same_unit() -> None:
    sets = [load_metric_set(arch).metrics for arch in Arch]
    shared = set.intersection(*(set(metrics) for metrics in sets))
    assert len(shared) > 40
    for short in shared:
        assert len({(metrics[short].unit, metrics[short].scale) for metrics in sets}) == 1, short


def test_only_hopper_counts_wgmma() -> None:
    with_wgmma = {arch for arch in Arch if "stall_wgmma" in load_metric_set(arch).metrics}
    assert with_wgmma == {Arch.SM_90A}


def test_a_set_survives_its_json() -> None:
    found = load_metric_set(Arch.SM_90A)
    assert MetricSet.model_validate_json(found.model_dump_json()) == found


def test_the_page_tells_every_quantity() -> None:
    page = (Path(__file__).parents[3] / "docs" / "internals" / "timing.md").read_text()
    for arch in Arch:
        for short, spec in load_metric_set(arch).metrics.items():
            assert f"| `{short}` | {spec.unit or 'count'} | {spec.meaning} |" in page


@pytest.mark.gpu
@pytest.mark.parametrize("arch", list(Arch))
def test_the_ncu_here_knows_every_metric(arch: Arch) -> None:
    ncu = shutil.which("ncu")
    if ncu is None:
        pytest.skip("no ncu on PATH")
    listed = subprocess.run(
        [ncu, "--query-metrics", "--chips", CHIPS[arch]], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    known = {line.split()[0] for line in listed.splitlines() if line.strip()}
    asked = {base_name(spec) for spec in load_metric_set(arch).metrics.values()}
    assert {name for name in asked if not name.startswith(NEEDS_NO_SUFFIX)} <= known


def base_name(spec: MetricSpec) -> str:
    return spec.metric.partition(".")[0]
