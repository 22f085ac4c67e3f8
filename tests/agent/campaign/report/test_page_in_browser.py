"""The page in headless Chromium: no script fails, nothing is requested, and a selected cell fills the panel."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.grid import held_out
from cudal2_agent.agent.campaign.report.page import build_page
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Timing
from tests.doubles import measured, step
from tests.doubles.campaign_rows import campaign_rows, shape_result

BROWSER = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine; the static tests of the page still run")

_WATCH = """<script>
window.failures = [];
window.addEventListener("error", event => failures.push(event.message));
window.addEventListener("unhandledrejection", event => failures.push(String(event.reason)));
</script>"""
_SELECT = """<script>
const models = () => [...Bokeh.documents[0]._all_models.values()];
function tell(selected) {
  const shown = models().find(model => model.type == "Div" && model.text.includes("<h3>"));
  const requests = performance.getEntriesByType("resource").map(entry => entry.name);
  const samples = models().find(model => model.type == "ColumnDataSource" && "who" in model.data);
  const chosen = {selected, panel: shown ? shown.text : "", who: Array.from(samples.data.who)};
  document.title = JSON.stringify({...chosen, failures, requests, canvases: document.querySelectorAll("div.bk-Tabs").length});
}
function begin() {
  if (!window.Bokeh || !Bokeh.documents.length) return setTimeout(begin, 100);
  const source = models().find(model => model.type == "ColumnDataSource" && "at" in model.data);
  const buttons = models().find(model => model.type == "RadioButtonGroup");
  source.selected.indices = [0];
  buttons.active = 1;
  setTimeout(() => tell({shape: source.data.shape[0], shown: source.data.shown[0]}), 300);
}
begin();
</script>"""


def opened(page: str, folder: Path) -> dict[str, Any]:
    """What the page told after its first cell was selected and plain launches were chosen."""
    head, _, tail = page.rpartition("</body>")
    file = folder / "page.html"
    file.write_text(head.replace("<head>", f"<head>{_WATCH}", 1) + f"{_SELECT}</body>{tail}", encoding="utf-8")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--virtual-time-budget=10000",
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    assert BROWSER is not None
    command = [BROWSER, *flags, f"--user-data-dir={folder / 'profile'}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120, check=True)
    title = re.search(r"<title>(\{.*?\})</title>", done.stdout, re.DOTALL)
    assert title is not None, "the page's scripts did not come to their end"
    told: dict[str, Any] = json.loads(unescape(title[1]))
    return told


def test_a_selected_cell_fills_the_panel(tmp_path: Path) -> None:
    rows = [row for row in campaign_rows(["64x64x64", "128x64x64", "4096x4096x512", "1x4096x4096"]) if row.best]
    rows[0] = shape_result("64x64x64", 1.5, 3.0, run_id="run-1")
    winner = measured(2.0).model_copy(update={"baselines": (Timing(name=AUTOTUNED, samples_us=(3.0, 3.1, 3.2)),)})
    told = opened(build_page(rows, held_out(), [step(7, evaluation=winner)]), tmp_path)
    assert told["failures"] == []
    assert told["requests"] == []
    assert told["selected"]["shape"] == "64x64x64"
    assert told["selected"]["shown"] == pytest.approx(1.5 * 0.9)
    assert "64×64×64" in told["panel"]
    assert "1.500×" in told["panel"]
    assert told["who"].count("AutoTuning") == 3
    assert told["canvases"] == 3
