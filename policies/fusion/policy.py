"""The policy without a language model for modules: a fuser whose kernels' axes are searched one kernel at a time."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS, Chip
from cudal2_agent.contract.plan.library_call import CONVOLUTIONS
from cudal2_agent.contract.records.candidate import Candidate, ScheduleValue
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation
from cudal2_agent.policies.fusion.axes import Axes, LibraryChoice
from cudal2_agent.policies.fusion.fused_source import ALGEBRA, FAMILY, Choice, parsed, written
from cudal2_agent.policies.fusion.grouping import Groups, grouped
from cudal2_agent.policies.fusion.programs import KernelProgram
from cudal2_agent.policies.fusion.row_kernels.row_space import fitted
from cudal2_agent.policies.fusion.space import choices
from cudal2_agent.policies.fusion.values import Unplanned

Plan = dict[str, Choice]
_WAITED = 2  # turns


class FusionPolicy:
    """The first candidate takes the best expected axes of every kernel. Later ones change one kernel of the fastest so far.

    Kernels that move more bytes are changed first. Deterministic in the observation; it repeats no schedule.
    `algebra`: sums over products are computed without the products, in another order than PyTorch's.
    """

    reads_code = False

    def __init__(self, *, algebra: bool = False) -> None:
        self.name, self._algebra = ALGEBRA if algebra else FAMILY, algebra
        self.exhausted = ""
        self._cached: tuple[str, Groups, dict[str, list[Choice]]] | None = None

    def propose(self, observation: Observation, count: int) -> list[Candidate]:
        """Fewer than `count`, or none, once the axes are exhausted, or where an operation cannot be planned."""
        task = observation.task
        if not isinstance(task, ModuleTask):
            return []
        try:
            groups, space = self._space(task, observation.chip)
        except Unplanned as exc:
            self.exhausted = f"the fuser has no rule for {exc}"
            return []
        tried = {_key(attempt.schedule) for attempt in observation.attempts if attempt.schedule}
        seen = {attempt.candidate_id for attempt in observation.attempts}
        candidates: list[Candidate] = []
        missing: Unplanned | None = None
        for plan in _plans(groups, space, self._fastest(observation.attempts, space)):
            if len(candidates) >= count:
                break
            try:
                candidate = written(task, groups, plan)
            except Unplanned as exc:  # other axes of the kernel may suit
                missing = exc
                continue
            key = _key(candidate.origin.schedule or {})
            if key not in tried and candidate.id not in seen:
                tried.add(key)
                seen.add(candidate.id)
                candidates.append(candidate)
        if missing is not None and not candidates:
            self.exhausted = f"the fuser has no rule for {missing}"
        return candidates

    def _space(self, task: ModuleTask, chip: Chip) -> tuple[Groups, dict[str, list[Choice]]]:
        """Raises: Unplanned."""
        if self._cached is None or self._cached[0] != task.id:
            groups = grouped(task, algebra=self._algebra)
            self._cached = task.id, groups, choices(groups, chip)
        return self._cached[1], self._cached[2]

    def _fastest(self, attempts: Sequence[Attempt], space: Mapping[str, Sequence[Choice]]) -> Plan:
        """The axes of the fastest timed attempt of this policy; the best expected ones where there is none."""
        base = {name: each[0] for name, each in space.items()}
        timed = [
            attempt
            for attempt in attempts
            if attempt.time_us is not None and (attempt.schedule or {}).get("family") == self.name
        ]
        if not timed:
            return base
        best = min(timed, key=lambda attempt: attempt.time_us or 0.0).schedule or {}
        return base | {name: parsed(str(text)) for name, text in best.items() if name in base}


def rewrite(candidate: Candidate, task: ModuleTask) -> Candidate | None:
    """The candidate's schedule for the module at other sizes, where axes that do not fit become the nearest that do.

    None where another policy wrote it, or where the module has other kernels at these sizes.
    """
    schedule = candidate.origin.schedule or {}
    if (family := schedule.get("family")) not in (FAMILY, ALGEBRA):
        return None
    try:
        groups = grouped(task, algebra=family == ALGEBRA)
        wanted = {name: parsed(str(text)) for name, text in schedule.items() if name != "family"}
        space = choices(groups, REFERENCE_CHIPS[task.arch])
        if set(wanted) != set(space):
            return None
        rows = {each.name: each for each in groups.programs if each.anchor is not None}
        return written(task, groups, {name: _fitted(wanted[name], rows.get(name), each) for name, each in space.items()})
    except (Unplanned, ValueError):
        return None


def _fitted(wanted: Choice, program: KernelProgram | None, space: Sequence[Choice]) -> Choice:
    """The axes for a kernel at other sizes; of one that reduces rows, the same form."""
    if program is not None and isinstance(wanted, Axes) and wanted.layout != "flat":
        return fitted(wanted, program)
    return _nearest(wanted, space)


def _nearest(wanted: Choice, space: Sequence[Choice]) -> Choice:
    """Itself, or the axes of a space with the most values in common."""
    if wanted in space or not isinstance(wanted, Axes):
        return wanted
    values = wanted.model_dump()

    def alike(axes: Axes) -> tuple[bool, int]:
        own = axes.model_dump()
        return own["layout"] == values["layout"], sum(own[axis] == value for axis, value in values.items())

    return max((each for each in space if isinstance(each, Axes)), key=alike)


def _key(schedule: Mapping[str, ScheduleValue]) -> tuple[tuple[str, ScheduleValue], ...]:
    return tuple(sorted(schedule.items()))


def _plans(groups: Groups, space: Mapping[str, Sequence[Choice]], base: Plan) -> Iterator[Plan]:
    """The base, the first choice of each kind for each convolution, then each kernel's other axes on the base, in turns between
    kernels: those that move most first. Matrix products of a library, which is hard to beat, wait some turns.
    """
    yield base
    convolutions = [step.name for step in groups.products if step.call.call in CONVOLUTIONS]
    for name in convolutions:
        kinds = {_kind(base[name])}
        for choice in space[name]:
            if _kind(choice) not in kinds:
                kinds.add(_kind(choice))
                yield base | {name: choice}
    late = {step.name for step in groups.products if isinstance(base[step.name], LibraryChoice)} - set(convolutions)
    order = sorted(space, key=lambda name: (name in late, -groups.weight(name)))
    changed = [[base] * _WAITED * (name in late) + [base | {name: choice} for choice in space[name]] for name in order]
    for turn in zip_longest(*changed):
        yield from (plan for plan in turn if plan is not None)


def _kind(choice: Choice) -> str:
    return choice.text() if isinstance(choice, LibraryChoice) else type(choice).__name__
