"""The page of results of modules: its tables from committed rows.

    python -m benchmarks.modules.page [FOLDER] [--out PAGE]

FOLDER holds `*modules_rows_*`, `*modules_counters_*` and `*modules_soundness_*`: JSON lines of `kernelbench`, of `counters` and
of `cudal2-agent tasks check --rows`, compressed or not, by default the committed ones. Of several rows of a task and arithmetic
the last one counts, in the order of the files' dates; of max-autotune the last row that has it.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.harness import ROOT, execute, fill, marks_of, script, shown, table
from benchmarks.modules.rows import Row, geometric_mean, place_of, read_rows
from benchmarks.modules.summary import over_eager, served, summary
from cudal2_agent.contract.records.evaluation import MAX_AUTOTUNE, MODULE_BASELINES

MARKS, PAGE = marks_of(__file__), ROOT / "docs" / "results" / "modules.md"
DRAM_TBPS = {"H100": 3.35, "H200": 4.8}  # of the data sheets
TFLOPS = {"f32": 67.0, "f16": 989.0}  # the same: fused multiply-adds, and tensor cores
BUSY_PCT = 70.0  # of a unit's peak, from which it is what a kernel waits for
EXAMPLES = 3


def latest(rows: Sequence[Row]) -> list[Row]:
    """The last row of each task and arithmetic, by level and number."""
    found = {(row["arithmetic"], row["task"]): row for row in rows}
    return sorted(found.values(), key=lambda row: (row["arithmetic"] != "f32", *place_of(row["task"])))


def with_soundness(row: Row, sound: Mapping[tuple[int, int], str]) -> Row:
    """A row with what is known of its task, where it was measured before that was."""
    return row | {"soundness": sound.get(place_of(row["task"]), row.get("soundness"))}


def floor_us(row: Row) -> float | None:
    """Time to move the task's buffers once, or to multiply, by the card's data sheet."""
    tbps = next((value for card, value in DRAM_TBPS.items() if card in row.get("gpu", "")), None)
    if tbps is None:
        return None
    return max(float(row["bytes"]) / tbps / 1e6, float(row["flops"]) / TFLOPS.get(row["arithmetic"], TFLOPS["f32"]) / 1e6)


def page_text(rows: Sequence[Row], counters: Sequence[Row]) -> str:
    """Everything between the page's marks."""
    parts = []
    for arithmetic in dict.fromkeys(row["arithmetic"] for row in latest(rows)):
        own = [row for row in latest(rows) if row["arithmetic"] == arithmetic]
        parts += [f"## {arithmetic}", measured_on(own), summary(own, len(own)).partition("\n\n")[2].strip()]
        tuned = latest([row for row in rows if MAX_AUTOTUNE in row.get("baselines", {})])
        if tuned := [row for row in tuned if row["arithmetic"] == arithmetic]:
            parts += ["### Beside max-autotune", "\n".join(autotuned(tuned))]
        parts += ["### How far from the card's rates", "\n".join(shares(own))]
        if failed := [row for row in own if row["status"] != "measured"]:
            parts += ["### What has no time", "\n".join(failures(failed))]
        parts += ["### Tasks", "\n".join(tasks(own))]
    if counters:
        parts += ["## What holds back each class of operation", "\n".join(held_back(counters))]
    return "\n\n".join(parts)


def measured_on(rows: Sequence[Row]) -> str:
    cards = Counter((row["gpu"], row["torch"]) for row in rows if row["status"] == "measured")
    said = ", ".join(f"{count} on one {gpu} with torch {torch}" for (gpu, torch), count in cards.most_common())
    sound = Counter(row.get("soundness") or "not checked" for row in rows)
    return f"Measured: {said or 'none'}. Soundness: {', '.join(f'{count} {kind}' for kind, count in sorted(sound.items()))}."


def autotuned(rows: Sequence[Row]) -> Iterator[str]:
    ratios: dict[str, list[float]] = {name: [] for name in MODULE_BASELINES}
    for row in rows:
        for name, each in row["baselines"].items():
            ratios[name].append(each["speedup"][0])
    fastest = Counter(row["fastest"] for row in rows)
    found = [each for row in rows if (each := served(row)) is not None]
    yield f"{len(rows)} drawn tasks; nothing better counts as 1.00: {shown(geometric_mean(found))} over the fastest."
    yield ""
    head = ["baseline", "tasks", "fastest of all in", "geometric mean of our kernels over it"]
    yield from table(head, ([name, len(each), fastest[name], shown(geometric_mean(each))] for name, each in ratios.items()))


def shares(rows: Sequence[Row]) -> Iterator[str]:
    """By class, the median share of the floor in the time of our kernel and of the fastest baseline."""
    classes: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        floor = floor_us(row)
        if row["status"] == "measured" and floor is not None and row.get("fastest"):
            classes.setdefault(row["class"], []).append((floor / row["us"], floor / row["baselines"][row["fastest"]]["us"]))
    yield "The floor is the longer of moving every buffer once and of the products, by the card's data sheet."
    yield ""
    head = ["class", "tasks", "floor over our time, median", "floor over the fastest baseline's, median"]
    medians = {name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in classes.items()}
    yield from table(
        head, ([name, len(classes[name]), *(shown(each, ".2f") for each in medians[name])] for name in sorted(classes))
    )


def failures(rows: Sequence[Row]) -> Iterator[str]:
    """Rows without a time by status and message, whatever numbers that has."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        message = re.sub(r"\d[\d.]*", "N", str(row.get("message", ""))).replace(row["task"], "TASK").replace("|", "/")
        kinds.setdefault((row["status"], message[:160]), []).append(short(row["task"]))
    ordered = sorted(kinds.items(), key=lambda each: (-len(each[1]), each[0]))
    yield from table(
        ["status", "message", "tasks", "such as"],
        ([status, message, len(names), ", ".join(names[:EXAMPLES])] for (status, message), names in ordered),
    )


def short(name: str) -> str:
    """`1/19` of `1/19_ReLU`."""
    return name.partition("_")[0]


def tasks(rows: Sequence[Row]) -> Iterator[str]:
    """One row a task. Unit: microseconds."""
    head = [
        "task",
        "class",
        "floor",
        "ours",
        *MODULE_BASELINES,
        "over the fastest (95 %)",
        "served over eager",
        "kernels + calls",
    ]
    yield from table([*head, "worst error, of the bound", "sound", "answer"], map(_task, rows))


def _task(row: Row) -> list[object]:
    name, sound = row["task"].replace("_", " ").strip(), row.get("soundness") or ""
    if row["status"] != "measured":
        return [name, row["class"], *[""] * (len(MODULE_BASELINES) + 6), sound, row["status"]]
    best = next(each for each in row["candidates"] if each["candidate"] == row["best"])
    times = [row["baselines"].get(each, {}).get("us") for each in MODULE_BASELINES]
    ratio = "{:.3f} ({:.3f}–{:.3f})".format(*row["speedup"]) if row.get("speedup") else "—"
    return [
        name,
        row["class"],
        *(shown(each, ".1f") for each in (floor_us(row), row["us"], *times)),
        ratio,
        shown(over_eager(row), ".2f"),
        f"{best['kernels']} + {best['calls']}",
        shown(row["worst"], ".2g"),
        sound,
        row["answer"],
    ]


def held_back(counters: Sequence[Row]) -> Iterator[str]:
    """Of each counted task the kernel that takes longest, and what it waits for."""
    yield "Of each class the median task and the one that loses most: the longest kernel of each."
    yield ""
    head = [
        "class",
        "task",
        "over the fastest",
        "kernel's share",
        "device memory",
        "L2",
        "issue",
        "shared memory",
        "warps held",
    ]
    lines = (_counted(row) for row in sorted(counters, key=lambda row: row["class"]) if row.get("launches"))
    yield from table([*head, "moved, of the buffers' bytes", "it waits for"], lines)


def _counted(row: Row) -> list[object]:
    launches = row["launches"]
    longest = max(launches, key=lambda each: each.get("duration_ns", 0.0))
    whole = sum(each.get("duration_ns", 0.0) for each in launches)
    units = [longest.get(name) for name in ("dram_pct", "l2_pct", "issue_pct", "smem_pct", "occupancy_pct")]
    return [
        row["class"],
        short(row["task"]),
        shown(row["speedup"][0], ".2f"),
        f"{longest.get('duration_ns', 0.0) / whole:.0%}" if whole else "—",
        *(f"{each:.0f} %" if each is not None else "—" for each in units),
        f"{sum(each['moved_bytes'] for each in launches) / row['bytes']:.2f}",
        waits_for(longest),
    ]


def waits_for(launch: Row) -> str:
    """The busiest unit where one is busy, else the reason for which its warps stall most."""
    names = {
        "dram_pct": "device memory",
        "tensor_pct": "tensor cores",
        "issue_pct": "issue of instructions",
        "l2_pct": "L2",
        "smem_pct": "shared memory",
    }
    busiest = max(names, key=lambda name: launch.get(name, 0.0))
    if launch.get(busiest, 0.0) >= BUSY_PCT:
        return names[busiest]
    stalls = launch.get("stalls") or {}
    return f"latency: {max(stalls, key=lambda name: stalls[name]).replace('_', ' ')}" if stalls else "latency"


def text_of(folder: Path) -> str:
    """The page's tables from the files of a folder."""

    def lines(kind: str) -> list[Row]:
        files = folder.glob(f"*modules_{kind}_*")
        return [row for file in sorted(files, key=lambda file: file.name.partition(kind)[2]) for row in read_rows(file)]

    sound = {place_of(row["name"]): row["status"] for row in lines("soundness")}
    return page_text([with_soundness(row, sound) for row in lines("rows")], lines("counters"))


def main() -> None:
    parser = script(__file__, __doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "benchmarks" / "results")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page whose tables are replaced")
    given = parser.parse_args()
    fill(given.out, MARKS, text_of(given.folder))


if __name__ == "__main__":
    execute(main)
