"""What `tune` says: lines on stderr while it works, and its answer."""

from collections import defaultdict
from collections.abc import Iterator

from cudal2_agent.agent.cli.render.advice_table import not_served, words_of
from cudal2_agent.agent.cli.render.alignment import NONE, aligned
from cudal2_agent.agent.cli.render.plain_console import PlainConsole
from cudal2_agent.agent.library.algorithms.tuned_products import TunedProduct
from cudal2_agent.agent.model_tuning.tune_records import (
    GpuShares,
    JudgedProduct,
    JudgedRange,
    OutputErrors,
    PassTimes,
    TuneAnswer,
)
from cudal2_agent.agent.model_tuning.tuning import TunePlan
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.reward.speedup import Speedup

_SHARES = {
    "served_us": "matrix products that the library runs",
    "other_us": "other matrix products",
    "batched_us": "batches of products",
    "attention_us": "fused attention",
    "grouped_us": "products of experts",
    "rest_us": "everything else",
}


class TuneLines:
    """`agent.model_tuning.tuning.Display`, a line for each event."""

    def __init__(self) -> None:
        self._console = PlainConsole()

    def stage(self, words: str) -> None:
        self._console.print(words, markup=False)

    def judged(self, row: JudgedProduct) -> None:
        self._product(row, "kernel", row.served, row.fault)

    def ranged(self, entry: LibraryEntry, row: JudgedRange) -> None:
        self._console.print(range_line(entry, row), markup=False)

    def tuned(self, row: TunedProduct) -> None:
        self._product(row, "cuBLASLt", row.faster, row.note or "cuBLASLt suggests nothing")

    def timed(self, row: PassTimes) -> None:
        for line in time_lines((row,)):
            self._console.print(line, markup=False)

    def _product(self, row: JudgedProduct | TunedProduct, what: str, kept: bool, why: str) -> None:
        """`why`: why there is no time."""
        found = why if row.speedup is None else f"{what} {row.time_us:.2f} us, {_ratio(row.speedup)} of {_rival(row.task)}"
        left = "" if kept else ", left to PyTorch"
        self._console.print(f"{row.task.shape} {row.task.layout}: {found}{left}", markup=False)

    def note(self, words: str) -> None:
        self._console.print(f"note: {' '.join(words.split())}", markup=False)


def range_line(entry: LibraryEntry, row: JudgedRange) -> str:
    """From which M on a kernel is faster than PyTorch's product."""
    found = row.fault or "no smaller M"
    if row.m_range is not None:
        ratios = [one.speedup.ratio for one in row.m_range.points]
        found = f"M from {row.m_range.smallest} on, {min(ratios):.3f} to {max(ratios):.3f} of {_rival(entry.task)}"
    return f"{entry.task.shape} {entry.task.layout}: {found}"


def plan_lines(plan: TunePlan) -> list[str]:
    """What is known, and what would be searched."""
    advice = plan.advice
    rows = [("part", "shape", "operands", "calls", "")]
    rows += [
        (one.product.part, one.product.shape, one.product.operands, f"{one.calls:g}", words_of(one)) for one in advice.products
    ]
    left = f", and {plan.left} in a later call" if plan.left else ""
    return [
        f"{advice.source} on {advice.chip}, library {advice.kernels}; calls of all passes",
        *aligned(rows, right=frozenset((3,)), flexible=4),
        f"{len(plan.wanted)} of {len(advice.products)} matrix products would be searched{left}",
    ]


def answer_lines(answer: TuneAnswer) -> Iterator[str]:
    """Times first, then what is served and what is not, what it costs, and the lines for a program."""
    yield f"{answer.request.model} on {answer.request.chip}"
    if answer.times:
        yield from time_lines(answer.times)
        yield ""
    yield from _served(answer)
    yield from _shares(answer.times)
    yield from _errors(answer)
    yield from (f"note: {note}" for note in answer.notes)
    yield from (f"note: {note}" for row in answer.times for note in row.notes)
    if answer.library is None:
        yield "nothing is faster than PyTorch, so that no library was written"
        return
    yield ""
    yield from _costs(answer)
    yield "in a program:"
    yield "  import cudal2"
    yield f'  cudal2.enable("{answer.library}")'
    yield "cudal2.disable() takes it out again, and so does leaving out these lines"
    if answer.left:
        yield f"{answer.left} matrix products were not searched for lack of time; the same command goes on"


def time_lines(times: tuple[PassTimes, ...]) -> list[str]:
    """A row for each pass and way: milliseconds before and after, and their ratio with its interval."""
    rows = [("tokens", "way", "before, ms", "after, ms", "speedup", "served")]
    for row in times:
        tokens = NONE if row.tokens is None else f"{row.tokens}"
        for way in row.ways:
            times_ms = f"{way.before_us / 1e3:.3f}", f"{way.after_us / 1e3:.3f}"
            rows.append((tokens, way.way, *times_ms, _ratio(way.speedup), f"{row.served} of {row.asked}"))
    return aligned(rows, right=frozenset((0, 2, 3, 5)), flexible=1)


def _served(answer: TuneAnswer) -> Iterator[str]:
    served = len(answer.products) - len(answer.unserved)
    yield f"{served} of {len(answer.products)} matrix products are served; {answer.searched} were searched in this call"
    if again := [one.status == "served" or one.status == "padded M" for one in answer.advice.products if one.again]:
        yield f"{sum(again)} of {len(again)} are served with their activation in compiled programs"
    if answer.ranges:
        yield f"{answer.ranges} of their kernels have a form for smaller M, too"
    if answer.dropped:
        yield f"{answer.dropped} kernels are left out: PyTorch's own product was faster here"
    yield from not_served(answer.advice)


def _shares(times: tuple[PassTimes, ...]) -> Iterator[str]:
    """Of the last pass, which has the most tokens where they rise."""
    shares: GpuShares | None = next((row.shares for row in reversed(times) if row.shares is not None), None)
    if shares is None or not shares.whole_us:
        return
    yield "GPU time of an eager pass with the library:"
    found = defaultdict[str, float](float, shares.model_dump())
    rows = [(f"  {words}", f"{100 * found[name] / shares.whole_us:.0f} %") for name, words in _SHARES.items() if found[name]]
    yield from aligned(rows, right=frozenset((1,)))


def _errors(answer: TuneAnswer) -> Iterator[str]:
    for name in ("outputs", "gradients"):
        found: list[OutputErrors] = [one for row in answer.times if (one := getattr(row, name)) is not None]
        if found:
            worst = max(found, key=lambda one: one.library / one.torch if one.torch else one.library)
            beyond = "" if worst.within(answer.tolerance) else f": MORE THAN {answer.tolerance:g} TIMES PyTorch's own"
            yield f"error of {name} against float32: PyTorch {worst.torch:.2e}, with the library {worst.library:.2e}{beyond}"


def _costs(answer: TuneAnswer) -> Iterator[str]:
    start_s = max((row.start_s for row in answer.times), default=0.0)
    memory = max((row.memory_bytes for row in answer.times), default=0)
    measured = f"{start_s:.2f} s at the start, {memory / 2**20:.1f} MiB of the GPU's memory, " if answer.times else ""
    yield f"costs: {measured}{answer.disk_bytes / 2**20:.1f} MiB on disk"


def _rival(task: GemmTask) -> str:
    """What PyTorch runs for a product."""
    if task.gated:
        return f"the joined torch.mm and a kernel of {task.activation} and the product"
    activation = f" and {task.activation}" if task.activation is not None else ""
    return f"{'torch.addmm' if task.bias else 'torch.mm'}{activation}"


def _ratio(speedup: Speedup) -> str:
    return f"{speedup.ratio:.3f}x ({speedup.low:.3f}–{speedup.high:.3f})"
