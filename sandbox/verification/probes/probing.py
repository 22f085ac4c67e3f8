"""Why a result is wrong: a few more runs, on inputs that show where wrong outputs are and what they were made of.

Covered: elements read from or stored to other places, blocks of K that are missing or added twice, outputs never written,
sums that were not cleared. Through an activation: where, and which formula was computed in place of the task's.
Not covered: faults that only some inputs or only some orders of warps show; wrong rounding.
"""

import contextlib
from collections.abc import Callable

import numpy as np

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.symptoms import Symptoms, WrongPlaces
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.sandbox.verification.comparison import near_wanted
from cudal2_agent.sandbox.verification.draws import Draws
from cudal2_agent.sandbox.verification.elements import Array, decode_wide, encode
from cudal2_agent.sandbox.verification.executor import Executor
from cudal2_agent.sandbox.verification.inputs import Inputs
from cudal2_agent.sandbox.verification.probes import probe_inputs
from cudal2_agent.sandbox.verification.probes.line_maps import describe_values
from cudal2_agent.sandbox.verification.probes.misreads import Reads, counted, mapped
from cudal2_agent.sandbox.verification.probes.mistaken import agreement, mistaken_formulas
from cudal2_agent.sandbox.verification.probes.probe_inputs import Operand, ProbeInputs, blocks_of, positions
from cudal2_agent.sandbox.verification.probes.wrong_outputs import wrong_places
from cudal2_agent.sandbox.verification.reference import Reference

_SEED = 16
_NOTABLE = 0.5  # of wrong outputs
_WINDOW = 1024  # rows and columns that are decoded
_ALIGNED = 256
OPERANDS: tuple[Operand, ...] = ("a", "b")
RIGHT_NOW = (
    "small numbers with exact sums come out right in fresh buffers: "
    "the fault depends on values, on what earlier runs left, or on timing"
)


class ProbeRuns:
    """`in_time`: whether another run may begin.

    Of a task with more rows or columns than the window holds, sources are known of the first wrong ones only.
    """

    def __init__(self, executor: Executor, task: GemmTask, in_time: Callable[[], bool]) -> None:
        self._executor, self._task, self._in_time = executor, task, in_time
        self._xp = executor.xp
        self._inputs = ProbeInputs(self._xp, task)
        self._window = (slice(0, task.m), slice(0, task.n))

    def symptoms(self) -> Symptoms | None:
        """None where not even the first run was in time."""
        if not self._in_time():
            return None
        inputs = probe_inputs.spread(Draws(self._xp, _SEED), self._task)
        run = self._executor.run(inputs)
        got = run.output.copy()
        wrong = self._wrong(got, inputs)
        if not bool(wrong.any()):
            return None if run.violations else Symptoms(values=(RIGHT_NOW,))
        places = wrong_places(self._xp, wrong)
        if self._task.activation is not None:
            return Symptoms(places=places, values=self._formula(got, inputs, wrong))
        self._window = _window(places)
        corner = (self._window[0].start, self._window[1].start)
        values = describe_values(*self._values(got, inputs), poison=run.poison, element=self._task.element, corner=corner)
        return Symptoms(places=places, values=tuple(values), sources=tuple(self._sources()))

    def _wrong(self, got: Array, inputs: Inputs) -> Array:
        """Which outputs differ from the exact product. Shape: (M, N)."""
        xp, task = self._xp, self._task
        wrong = xp.zeros(got.shape, dtype=bool)
        for block in Reference(xp, task, inputs, keep=False).blocks():
            rows = slice(block.start, block.start + len(block.product))
            if task.activation is not None:
                wrong[rows] = ~near_wanted(xp, task, got[rows], block)
                continue
            want, have = encode(xp, block.product, task.element), got[rows]
            wrong[rows] = (have != want) & ~((block.product == 0) & ((have & xp.uint16(0x7FFF)) == 0))
        return wrong

    def _formula(self, got: Array, inputs: Inputs, wrong: Array) -> tuple[str, ...]:
        """What wrong outputs are. What they were made of does not show through an activation."""
        blocks = Reference(self._xp, self._task, inputs, keep=False).blocks()
        formulas = mistaken_formulas(self._xp, self._task)
        shares = agreement(self._xp, self._task, blocks, got, wrong, formulas)
        words = max(shares, key=lambda each: shares[each])
        return (f"{shares[words]:.0%} are {words}",) if shares[words] >= _NOTABLE else ()

    def _values(self, got: Array, inputs: Inputs) -> tuple[np.ndarray, np.ndarray]:
        """D as bit patterns and the exact product, in the window. Shape: both (rows, columns)."""
        rows, columns = self._window
        a, b = (decode_wide(self._xp, each, self._task.element) for each in (inputs.a[rows], inputs.b[:, columns]))
        bias = 0.0 if inputs.bias is None else decode_wide(self._xp, inputs.bias[columns], self._task.element)
        return self._host(got[rows, columns]), self._host(a @ b + bias)

    def _sources(self) -> list[str]:
        """What the probes say of both operands, in words.

        Exchanged elements change counts too, so counts are reported beside them only where whole blocks are missing or doubled.
        """
        reads = [self._reads(operand) for operand in OPERANDS]
        exchanged, all_of_it = mapped(*(each for each in reads if each is not None))
        if all_of_it:
            return exchanged
        counts = [self._counts(operand) for operand in OPERANDS]
        return [*(words for words, whole in counts if words and (whole or not exchanged)), *exchanged]

    def _counts(self, operand: Operand) -> tuple[str, bool]:
        if (added := self._output(self._inputs.blocks(operand))) is None:
            return "", True
        task, (rows, columns) = self._task, self._window
        blocks = blocks_of(task.m, task.k)[rows] if operand == "a" else blocks_of(task.n, task.k)[columns]
        return counted(operand, blocks, added, task.k)

    def _reads(self, operand: Operand) -> Reads | None:
        """The elements of an operand that the outputs were made of; None where time is over or no output has just one."""
        task, (rows, columns) = self._task, self._window
        once = self._output(self._inputs.ones_times_hot(operand))
        lines, depths = (self._index(operand, axis) for axis in ((0, 1) if operand == "a" else (1, 0)))
        if once is None or lines is None or depths is None:
            return None
        known = (once == 1) & (lines >= 0) & (depths >= 0)
        if not known.any():
            return None
        down, across = np.meshgrid(np.arange(task.m)[rows], np.arange(task.n)[columns], indexing="ij")
        own, hot = (down, across) if operand == "a" else (across, down)
        wanted = positions(task.n if operand == "a" else task.m, task.k)[hot]
        return Reads(operand, own[known], wanted[known], lines[known], depths[known], hot[known], float(known.mean()))

    def _index(self, operand: Operand, axis: int) -> np.ndarray | None:
        """The index along an axis of the element that each output is, -1 where it is none. Shape: of the window."""
        index: np.ndarray | None = None
        for place, inputs in enumerate(self._inputs.digits(operand, axis)):
            if (digit := self._output(inputs)) is None:
                return None
            legal = (digit >= 1) & (digit <= self._inputs.base) & (digit == np.rint(digit))
            part = np.where(legal, digit - 1, 0).astype(np.int64) * self._inputs.base**place
            before = np.zeros_like(part) if index is None else index
            index = np.where(legal & (before >= 0), before + part, -1)
        return index

    def _output(self, inputs: Inputs) -> np.ndarray | None:
        """D of one more run, in the window; None where time is over. Shape: (rows, columns), float64."""
        if not self._in_time():
            return None
        output = self._executor.run(inputs).output[self._window]
        with np.errstate(invalid="ignore"):  # what was never written is NaN
            return self._host(decode_wide(self._xp, output, self._task.element))

    def _host(self, values: Array) -> np.ndarray:
        return np.asarray(values if self._xp is np else self._xp.asnumpy(values))


def _window(places: WrongPlaces) -> tuple[slice, slice]:
    """The rows and columns that are decoded: from the first wrong ones on."""
    starts = (each.first // _ALIGNED * _ALIGNED for each in (places.rows, places.columns))
    rows, columns = (slice(start, start + _WINDOW) for start in starts)
    return rows, columns


def looks_into(failed: TestResult) -> bool:
    """Whether more runs can say more about a failure: one of D's contents, and not one that a detector has named."""
    return failed.tier in ("exact", "accuracy", "special", "freshness") or failed.name == "unwritten"


def with_symptoms(failed: TestResult, executor: Executor, task: GemmTask, in_time: Callable[[], bool]) -> TestResult:
    """A failed test with what the probes show; as it is where there is no memory for them."""
    if failed.passed or failed.symptoms is not None or not looks_into(failed):
        return failed
    with contextlib.suppress(MemoryError):
        return failed.model_copy(update={"symptoms": ProbeRuns(executor, task, in_time).symptoms()})
    return failed
