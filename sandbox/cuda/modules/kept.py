"""The references of timed launches, kept for every set of values, and the outputs judged by them element by element.

Covered: every element of every output of every launch of every sample, within twice the bound of the proof, which takes a
second look (`bounds.py`) that nothing is kept for.
Not covered: indices of extrema, of which one in a thousand may differ where values are alike; states.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement, Role
from cudal2_agent.sandbox.cuda.timing.outputs import OutputJudgement
from cudal2_agent.sandbox.cuda.timing.sample_plan import TimedLaunch
from cudal2_agent.sandbox.modules.bounds import Expected, Judge, bound_of
from cudal2_agent.sandbox.modules.executor import PIECE, Run
from cudal2_agent.sandbox.modules.pieces import AnyJudge, PieceJudge

EXTREMA_APART = 1e-3
ROUNDED_UP = 1.01  # a bound in bf16 is not below itself
UNLOOKED = 2.0
KEPT_BYTES_AN_ELEMENT = 6  # of a reference and its bound


@dataclass(frozen=True)
class KeptOutput:
    """One output's reference, flat. `bound`: None where elements must be equal but for the share `apart`."""

    reference: torch.Tensor
    bound: torch.Tensor | None
    apart: float = 0.0

    def wrong(self, output: torch.Tensor) -> torch.Tensor:
        """How many elements are wrong, on the device. Shape: (n,) in, () out."""
        count = torch.zeros((), dtype=torch.int64, device=output.device)
        for start in range(0, output.numel(), PIECE):
            piece = slice(start, start + PIECE)
            got, want = output[piece], self.reference[piece]
            if self.bound is None:
                count += (got != want).sum()
                continue
            got = got.to(want.dtype)
            right = ((got - want).abs() <= self.bound[piece]) | (got == want) | (got.isnan() & want.isnan())
            count += (~right).sum()
        return count


def keep(judge: AnyJudge, outputs: Sequence[Buffer], device: torch.device) -> dict[str, KeptOutput]:
    """What is kept of a judge's references: f32 has more digits than a bound needs, and a bound needs few."""
    kept = {buffer.name: _empty(buffer, device) for buffer in outputs}
    for part in judge.parts if isinstance(judge, PieceJudge) else (None,):
        whole_or_part = judge.judge_of(part) if isinstance(judge, PieceJudge) and part is not None else judge
        assert isinstance(whole_or_part, Judge)
        expected = whole_or_part.expected
        for buffer in outputs:
            if buffer.name not in expected:
                continue
            one = expected[buffer.name]
            if one.source is not None:
                kept[buffer.name] = replace(kept[buffer.name], apart=EXTREMA_APART)
            whole = kept[buffer.name]
            views = [value.reshape(buffer.shape) for value in (whole.reference, whole.bound) if value is not None]
            if part is not None:
                views = [part.of({buffer.name: value})[buffer.name] for value in views]
            _fill(views, one)
        del whole_or_part, expected, one  # before the next part's
    return kept


def _empty(buffer: Buffer, device: torch.device) -> KeptOutput:
    """Room for an output. Shape: (elements,)."""
    if not buffer.element.floating:
        return KeptOutput(torch.empty(buffer.elements, dtype=torch.int64, device=device), None)
    kind = torch.float64 if buffer.element is BufferElement.F64 else torch.float32
    reference = torch.empty(buffer.elements, dtype=kind, device=device)
    return KeptOutput(reference, torch.empty(buffer.elements, dtype=torch.bfloat16, device=device))


def _fill(views: Sequence[torch.Tensor], expected: Expected) -> None:
    """Write a part's reference, and its bound where there is one."""
    views[0].copy_(expected.reference)
    if len(views) == 1:
        return
    reference = expected.reference.contiguous().reshape(-1)
    explained = expected.explained.reshape(-1) if expected.explained.dim() else expected.explained.expand(reference.numel())
    bound = torch.empty(reference.numel(), dtype=torch.bfloat16, device=reference.device)
    for start in range(0, reference.numel(), PIECE):
        piece = slice(start, start + PIECE)
        narrow = reference[piece].to(views[0].dtype).double()
        rounded = torch.where(reference[piece].isfinite(), (narrow - reference[piece]).abs(), 0.0)
        bound[piece] = (
            bound_of(reference[piece], explained[piece], expected.element, UNLOOKED * expected.multiple) + rounded
        ) * ROUNDED_UP
    if expected.free is not None:
        bound[expected.free.reshape(-1)] = torch.inf
    views[1].copy_(bound.reshape(views[1].shape))


class KeptJudge:
    """Judges the outputs that launches left in their slots.

    `output`: the stored tensor of a buffer in a slot; `values`: those of a set; `kept`: by set.
    """

    def __init__(
        self,
        task: ModuleTask,
        output: Callable[[Buffer, TimedLaunch], torch.Tensor],
        values: Callable[[int], Mapping[str, torch.Tensor]],
        judge: Callable[[Mapping[str, torch.Tensor]], AnyJudge],
        kept: Callable[[int], Mapping[str, KeptOutput]],
    ) -> None:
        self._output, self._values, self._judge, self._kept = output, values, judge, kept
        self._outputs = [buffer for buffer in task.buffers if buffer.role is Role.OUTPUT]
        self._written = [buffer for buffer in task.buffers if buffer.role.written]

    def project(
        self,
        launches: Sequence[TimedLaunch],
        draw: random.Random,  # noqa: ARG002 (all elements)
        *,
        library: bool = False,  # noqa: ARG002 (its bound is the same)
    ) -> OutputJudgement:
        """The outputs of these launches. Errors are not summed up: every element has its bound."""
        counts, places = [], []
        for index, launch in enumerate(launches):
            kept = self._kept(launch.a)
            for buffer in self._outputs:
                if buffer.elements:
                    counts.append(kept[buffer.name].wrong(self._output(buffer, launch).reshape(-1)))
                    places.append((index, buffer, int(kept[buffer.name].apart * buffer.elements)))
        elements = sum(buffer.elements for _, buffer, _ in places)
        judged = OutputJudgement(None, 0.0, 0.0, elements)
        for (index, buffer, allowed), count in zip(places, torch.stack(counts).tolist() if counts else [], strict=True):
            if count > allowed:
                fault = (
                    f"{count} of {buffer.elements} elements of {buffer.name} are wrong, in launch {index} of {len(launches)}"
                )
                return OutputJudgement(fault, 0.0, 0.0, elements)
        return judged

    def compare(self, launch: TimedLaunch) -> "Compared":
        """One launch's outputs and states against references that are computed anew."""
        judge = self._judge(self._values(launch.a))
        verdict = judge.judge(Run({buffer.name: self._output(buffer, launch) for buffer in self._written}))
        return Compared(0 if verdict.right else max(verdict.wrong, 1), verdict.describe())


@dataclass(frozen=True)
class Compared:
    """As `verification.comparison.Comparison` says it."""

    mismatches: int
    words: str

    def describe(self) -> str:
        return self.words


def kept_bytes(task: Any) -> int:
    """Device memory of the references of one set."""
    return sum(KEPT_BYTES_AN_ELEMENT * buffer.elements for buffer in task.buffers if buffer.role is Role.OUTPUT)
