"""The page as a text: what it contains and what it must not load. `test_page_in_browser.py` opens it."""

import re
import sys
from html.parser import HTMLParser

import pytest

from benchmarks.speed.grid import grid_shapes, held_out
from cudal2_agent.agent.campaign.report.figures import figures_of, on_grid
from cudal2_agent.agent.campaign.report.page import build_page
from cudal2_agent.agent.campaign.report.panel import kinds_of, schedule_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.diagnosis import Diagnosis, Finding
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import Layout, TimingMode
from tests.doubles import measured, step
from tests.doubles.campaign_modules import asked, module_row
from tests.doubles.campaign_rows import campaign_rows, shape_result, winner

SOME = ["64x64x64", "64x128x512", "4096x4096x64", "8192x8192x8192", "1x4096x4096", *sorted(held_out() & set(grid_shapes()))[:4]]
LOADS = {"src", "href", "data", "srcset", "action", "poster"}


@pytest.fixture(scope="module")
def page() -> str:
    return build_page(campaign_rows(SOME), held_out())


class Loads(HTMLParser):
    """Collects what the elements of a page would load, and the text outside of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.words: list[str] = []
        self._tag = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._tag = tag
        self.addresses += [value or "" for name, value in attrs if name in LOADS]

    def handle_data(self, data: str) -> None:
        if self._tag == "style":
            self.addresses += re.findall(r"@import|url\([^)]*\)", data)
        if self._tag not in ("style", "script"):
            self.words.append(data)


def read(page: str) -> Loads:
    loads = Loads()
    loads.feed(page)
    return loads


def test_the_page_loads_nothing(page: str) -> None:
    assert read(page).addresses == ["data:,"]


def test_what_loads_is_seen() -> None:
    text = '<script src="https://a.example/x.js"></script><style>@import "x"; b { background: url(https://b.example) }</style>'
    assert read(text).addresses == ["https://a.example/x.js", "@import", "url(https://b.example)"]


def test_bokeh_is_inside_and_without_the_scripts_that_the_page_does_not_use(page: str) -> None:
    assert "bokeh.min.js" in page
    assert "MathJax" not in page.split("bokeh-widgets.min.js")[0][:2000]
    assert len(page) < 2_500_000


def test_the_table_has_the_figures_of_the_rows(page: str) -> None:
    words = "".join(read(page).words)
    offline = [row for row in campaign_rows(SOME) if row.task.mode is TimingMode.OFFLINE and on_grid(row)]
    assert f"{figures_of(offline).geomean:.3f}" in words
    assert "offline, nn, f16, accumulate f32" in words
    assert "server, nn, f16, accumulate f32, off the grid, held out of every tuning" in words
    assert "of these held out of every tuning" in words


def test_a_row_without_a_kernel_is_listed_with_its_reason(page: str) -> None:
    assert "no kernel was right" in "".join(read(page).words)


def test_layouts_are_never_averaged_together() -> None:
    words = "".join(read(build_page([shape_result("64x64x64"), shape_result("64x64x64", layout=Layout.TN)])).words)
    assert "offline, tn, f16, accumulate f32" in words


def test_kinds_are_in_the_order_of_layouts_and_modes() -> None:
    drawn = [shape_result("64x64x64", layout=layout, mode=mode) for mode in TimingMode for layout in reversed(Layout)]
    names = [f"{mode}, {layout}, f16, accumulate f32" for layout in Layout for mode in TimingMode]
    assert list(kinds_of(drawn)) == names


def test_the_slowest_show_what_was_counted() -> None:
    row = shape_result("8192x8192x8192", 0.95, 1500.0, run_id="run-1")
    metrics = {"tensor_pct": 71.4, "dram_pct": 30.0, "duration_ns": 5.0}
    launch = LaunchProfile(entry="gemm", grid=(1, 1, 1), block=(1, 1, 1), metrics=metrics)
    profile = Profile(tool="ncu", metric_set="sm_90a", seconds=1, launches=(launch,))
    finding = Finding(bottleneck="smem-bound", evidence="shared memory works 97 % of the time", remedy="", weight=0.2)
    winner = step(7, evaluation=measured(9.0)).model_copy(
        update={"profile": profile, "diagnosis": Diagnosis(basis="counters", findings=(finding,))}
    )
    words = "".join(read(build_page([row], (), [winner])).words)
    assert "Nsight Compute: tensor pipe 71 %, DRAM 30 %. smem-bound: shared memory works 97 % of the time." in words


def test_texts_of_rows_are_escaped() -> None:
    row = shape_result("64x64x64", best=None, best_without=None, reason="<script>alert(1)</script>")
    assert "<script>alert(1)" not in build_page([row, shape_result("64x64x128")])


def test_no_rows_and_no_bokeh_say_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no campaign result"):
        build_page([])
    monkeypatch.setitem(sys.modules, "bokeh.embed", None)
    with pytest.raises(UsageError, match=r"cudal2-agent\[report\]"):
        build_page([shape_result("64x64x64")])


def test_a_schedule_is_its_family_and_its_axes() -> None:
    one = winner(1.1, 10.0, programmatic=True)
    said = "wgmma_tma block_m=128 block_n=256 block_k=64 stages=4 cluster_m=2 programmatic"
    assert schedule_of(one) == said
    assert schedule_of(one.model_copy(update={"schedule": None})) == "kernel 0123456789abcdef, written without a schedule"


def test_modules_are_a_table_with_every_baseline_and_need_no_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bokeh", None)
    rows = [
        module_row(asked("level1/1_relu"), 1.5),
        module_row(asked("level1/2_gelu"), 0.5),
        module_row(asked("level2/1_both"), None, soundness="unsound", soundness_reason="zeros are accepted"),
        module_row(asked("level2/2_<b>"), best=None, status="no-task", reason="it is no Python"),
    ]
    page = build_page([], modules=rows)
    loads = read(page)
    words = " ".join("".join(loads.words).split())
    assert loads.addresses == ["data:,"]
    assert "eager, µscompiled, µsover the fastest" in words
    assert "faster 5.0015.007.501.5001.490 to 1.5103.0002.990 to 3.010" in words
    assert "keep PyTorch’s 5.005.002.500.500" in words
    assert "verified by the emulator ——————" in words
    assert "unsoundzeros are acceptedrows=32 columns=64" in words
    assert "no task: it is no Python" in words
    assert "level2/2_<b>" not in page
    assert "AutoTuning" not in words


def test_a_page_of_both_kinds_has_both(page: str) -> None:
    both = build_page(campaign_rows(SOME), held_out(), modules=[module_row()])
    assert 'id="figures"' in both
    assert 'id="modules"' in both
    assert 'id="modules"' not in page
