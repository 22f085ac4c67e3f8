"""Earlier kernels of a run as text for a model, so that one that remembers nothing can go on.

What was tried, as a table; the latest right kernels as differences to the best one; exemplars; what 'faster' is measured by.
All untrusted text is fenced, or on one line inside a fence.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence

from cudal2_agent.contract.records.candidate import axes_in_use
from cudal2_agent.contract.records.evaluation import Measured, Unmeasured
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.trajectory import Attempt, Exemplar, Observation
from cudal2_agent.contract.reward.speedup import TIE, median_us, tied, yardstick_of
from cudal2_agent.policies.chat.prompts.quoting import fenced, inline
from cudal2_agent.policies.chat.prompts.rendering import launches_text, remainder_text, terms_text

_BYTES_ONLY = (
    " The prediction knows the bytes that each step moves and how many steps there are, and nothing of how well a kernel does "
    "it: fewer steps and fewer bytes between them are what it can tell."
)
NEWEST, FASTEST = 2, 6  # attempts that are listed before all others
_MINUTES = (120, 60, 30, 15, 8, 3)  # left to a run: the steps that a prompt names
_CELL = 1000  # characters: more than any part of it has, so that none is cut
_DIFF_LINES = 3000  # of both sources together; a longer comparison takes too long
_HEAD = "candidate | written from | changed | outcome | time | parts of the time, us, predicted; most limits | resources | idea"
_ALONE = 2  # of the largest terms that a row names


def tried_text(observation: Observation) -> list[str]:
    """A row for each candidate that was tried, the first with the head of the table.

    The newest come first, whatever became of them; then the fastest, measured times before predictions, as they rank; then all
    others, latest first.
    """
    latest = {attempt.candidate_id: attempt for attempt in observation.attempts}
    newest = list(reversed(latest.values()))[:NEWEST]
    older = [one for one in latest.values() if one not in newest]
    timed = sorted((one for one in older if time_us(one) is not None), key=_order(older, observation.task))[:FASTEST]
    others = [one for one in reversed(older) if one not in timed]
    rows = [_row(attempt, observation) for attempt in (*newest, *timed, *others)]
    return [f"{_HEAD}\n{row}" if not place else row for place, row in enumerate(rows)]


def recent_text(observation: Observation, left_out: Sequence[str]) -> list[str]:
    """The latest right kernels, each in full as a difference to the best. `left_out`: ids of those that are shown elsewhere.

    A kernel that shares little with the best is left out: its difference would be longer than the kernel.
    """
    if observation.best is None:
        return []
    attempts = {attempt.candidate_id: attempt for attempt in observation.attempts}
    shown = [("the best kernel", observation.best.source)]
    pieces = []
    for candidate in observation.recent:
        [*changed] = _differences_from(candidate.source, shown)
        if candidate.id not in left_out and candidate.id in attempts and changed and len(changed[0]) < len(candidate.source):
            pieces.append(f"{fenced(_about(attempts[candidate.id], candidate.origin.note, observation.task))}\n{changed[0]}")
    return pieces


def exemplar_text(exemplar: Exemplar, shown: Sequence[tuple[str, str]], task: Task) -> str:
    """An exemplar with its score. It is shown as a diff against a source in `shown`, (name, source), if that is short."""
    candidate = exemplar.candidate
    whole = fenced(candidate.source, "cuda")
    short = min(_differences_from(candidate.source, shown), key=len, default=whole)
    about = fenced(_about(exemplar.attempt, candidate.origin.note, task))
    return f"{about}\n{short if 2 * len(short) < len(whole) else whole}"


def yardstick_text(observation: Observation) -> str:
    """What 'faster than the best kernel' is measured by: a measured time, a prediction, or nothing."""
    match observation.best_evaluation:
        case Measured(time_us=time_us) as measured:
            beaten = yardstick_of(measured)
            target = f" To be beaten: {beaten.name}, {median_us(beaten):.2f} us." if beaten else ""
            return f"Its time is measured: {time_us:.2f} us. Yours is measured beside it.{target}"
        case Unmeasured(prediction=prediction) if prediction.is_floor:
            return (
                "There is no measure: its time is neither measured nor predicted here, so that no kernel can be shown to be "
                "faster. Give your reasons in numbers."
            )
        case Unmeasured(prediction=prediction):
            return (
                f"Its time is a prediction: {prediction.predicted_us:.2f} us by {prediction.model}. Nothing is measured here. "
                f"Yours is predicted too, and the fastest prediction leads. Within {TIE:.0%} the order may be wrong."
                f"{_BYTES_ONLY if isinstance(observation.task, ModuleTask) else ''}"
            )
        case _:
            return ""


def left_text(observation: Observation) -> str:
    """How many candidates and minutes the run has left, this round included; empty where neither is known.

    Minutes are told in steps, so that a replayed run has the same prompts.
    """
    candidates, seconds = observation.candidates_left, observation.seconds_left
    left = [] if candidates is None else [f"{candidates} candidate{'s' if candidates != 1 else ''}"]
    if seconds is not None:
        least = next((minutes for minutes in _MINUTES if seconds >= 60 * minutes), 0)
        left.append(f"more than {least} min" if least else f"less than {_MINUTES[-1]} min")
    return f"Left to the run, this round included: {', '.join(left)}." if left else ""


def _order(attempts: Sequence[Attempt], task: Task) -> Callable[[Attempt], tuple[bool, float]]:
    """Measured ones first. Ratios over one baseline rank fairly where clocks drift; those of modules may be over several."""
    measured = [one for one in attempts if one.time_us is not None]
    paired = not isinstance(task, ModuleTask) and all(one.speedup is not None for one in measured)

    def key(attempt: Attempt) -> tuple[bool, float]:
        if paired and attempt.time_us is not None:
            return False, -(attempt.speedup or 0.0)
        return attempt.time_us is None, time_us(attempt) or 0.0

    return key


def time_us(attempt: Attempt) -> float | None:
    return attempt.time_us if attempt.time_us is not None else attempt.modelled_us


def _row(attempt: Attempt, observation: Observation) -> str:
    best = observation.best is not None and attempt.candidate_id == observation.best.id
    cells = (
        f"{attempt.candidate_id[:8]} {inline(attempt.policy, 30)}{' (the best)' if best else ''}",
        (attempt.parent or "")[:8],
        attempt.change,
        _outcome(attempt),
        _time(attempt, observation.task) + _tie(attempt, observation),
        _course(attempt),
        _resources(attempt),
        "; ".join(part for part in (attempt.idea, " ".join(axes_in_use(attempt.schedule or {}))) if part),
    )
    return " | ".join(inline(cell, _CELL).replace("|", "/") or "-" for cell in cells)


def _course(attempt: Attempt) -> str:
    """The parts of its time and what they leave of it, the resources that it needs most, and its heaviest finding."""
    said = [terms_text(list(attempt.terms.items()))]
    if attempt.launches:
        total_us = time_us(attempt)
        left = remainder_text(total_us - attempt.explained_us) if total_us and attempt.explained_us else ""
        said = [launches_text(attempt.launches) + left, f"alone: {terms_text(list(attempt.terms.items())[:_ALONE])}"]
    if len(attempt.profiled_us) > 1:
        said.append(f"launches under the profiler: {', '.join(f'{us:.2f}' for us in attempt.profiled_us)}")
    return "; ".join(part for part in (*said, attempt.limit) if part)


def _outcome(attempt: Attempt) -> str:
    """What became of it, in true words."""
    if attempt.unproved:
        return "verified by a GPU, not yet by the second witness"
    if attempt.verdict:
        return attempt.verdict
    if attempt.time_us is None and attempt.predicted_us is not None:
        return "built"  # a record of an older version does not say who executed it
    status = attempt.status.replace("_", " ")
    return f"{status}: {inline(attempt.message)}" if attempt.message else status


def _time(attempt: Attempt, task: Task) -> str:
    if attempt.time_us is not None:
        baseline = "PyTorch's fastest" if isinstance(task, ModuleTask) else "cuBLASLt-AutoTuning"
        versus = f", speedup {attempt.speedup:.3f} over {baseline}" if attempt.speedup is not None else ""
        return f"{attempt.time_us:.2f} us{versus}"
    if attempt.modelled_us is not None:
        return f"{attempt.modelled_us:.2f} us predicted, not measured"
    return "none is known" if attempt.predicted_us is not None else ""


def _tie(attempt: Attempt, observation: Observation) -> str:
    """Whether its prediction ties with that of the best kernel."""
    best = observation.best_evaluation
    if observation.best is None or not isinstance(best, Unmeasured) or best.prediction.is_floor:
        return ""
    other = attempt.candidate_id != observation.best.id
    alike = attempt.time_us is None and attempt.modelled_us is not None
    return ", tied with the best" if other and alike and tied(attempt.modelled_us or 0.0, best.predicted_us) else ""


def _resources(attempt: Attempt) -> str:
    taken = attempt.resources
    if taken is None:
        return ""
    spilled = f", {taken.spilled_bytes} B spilled" if taken.spilled_bytes else ""
    grid = f"{taken.ctas} CTAs" if taken.ctas is not None else "CTAs"
    return (
        f"{taken.registers} registers{spilled}, {taken.smem_bytes} B smem, {grid} of {taken.threads} threads, "
        f"{taken.ctas_per_sm} per SM"
    )


def time_text(observation: Observation, candidate_id: str) -> str:
    """A candidate's time, or what became of it; empty where the run has no such candidate."""
    latest = {attempt.candidate_id: attempt for attempt in observation.attempts}
    attempt = latest.get(candidate_id)
    return (_time(attempt, observation.task) or _outcome(attempt)) if attempt else ""


def _about(attempt: Attempt, note: str, task: Task) -> str:
    time = _time(attempt, task) or _outcome(attempt)
    return f"candidate {attempt.candidate_id[:8]}, {time}" + (f"\nidea: {inline(note)}" if note else "")


def _differences_from(source: str, shown: Sequence[tuple[str, str]]) -> Iterator[str]:
    lines = source.splitlines()
    for name, other in shown:
        before = other.splitlines()
        if len(lines) + len(before) <= _DIFF_LINES:
            changed = difflib.unified_diff(before, lines, name, "this one", n=1, lineterm="")
            yield f"As {name}, but:\n{fenced(chr(10).join(changed), 'diff')}"
