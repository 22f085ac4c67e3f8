"""Steps that no GPU measured, after measured ones. Whatever differs between measured steps is drawn anew.

So that a store cannot compress them better than real ones: hashes, seeds and secrets are random, samples are ticks of the
GPU's clock with the noise of a measured step, and errors, powers and seconds have all their digits.
"""

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from benchmarks.store.real_runs import RealRun
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import AUTOTUNED, Measured, SideFigures, Telemetry, TestResult, TimedOut, Timing
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.profile import Profile
from cudal2_agent.contract.records.ruler import ComparedOutput, Ruler
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import median_us

TICK_US = 0.032  # resolution of the GPU's clock
SAMPLE_US = 3840.0  # the launches of one sample together
SEED_BITS = 48
MAX_SETS = 4096  # of operands
_TILE = re.compile(r"(\d+)x(\d+)")
_TIME = re.compile(r"\d+\.\d{3} us")
_WIDTH = re.compile(r"(?<=m64n)\d+|(?<=HGMMA\.64x)\d+")


class Models(NamedTuple):
    """Measured steps by family and by effort, and those that ended in another way."""

    quick: dict[str, list[Step]]
    full: dict[str, list[Step]]
    late: list[Step]
    profiles: list[Profile]

    @classmethod
    def of(cls, runs: Sequence[RealRun]) -> "Models":
        quick: dict[str, list[Step]] = defaultdict(list)
        full: dict[str, list[Step]] = defaultdict(list)
        late: list[Step] = []
        for step in (step for run in runs for step in run.steps):
            if not isinstance(step.evaluation, Measured):
                late.append(step)
                continue
            effort = full if len(step.evaluation.baselines) > 1 else quick
            effort[str((step.candidate.origin.schedule or {}).get("family"))].append(step)
        return cls(quick, full, late, [step.profile for run in runs for step in run.steps if step.profile])

    @property
    def families(self) -> frozenset[str]:
        return frozenset(self.quick.keys() & self.full.keys())

    def choose(self, candidate: Candidate, rng: Random, *, in_full: bool) -> Step:
        family = str((candidate.origin.schedule or {}).get("family"))
        return rng.choice((self.full if in_full else self.quick)[family])


class InventedWorker:
    """What a worker process keeps for the task of a run: seeds, operand sets, the time of the baseline, errors of tests."""

    def __init__(self, task: GemmTask, chip: Chip, rng: Random) -> None:
        self._task = task
        self._rng = rng
        self._seed = rng.getrandbits(SEED_BITS)
        self._order = rng.getrandbits(64)
        self._errors: dict[str, float] = {}
        self._details: dict[str, str] = {}
        self.baseline_us = roofline_us(task, chip) * Random(task.shape).uniform(1.0, 2.5) * rng.uniform(0.99, 1.01)
        operands = 2 * task.k * (task.m + task.n)
        self._sets = min(MAX_SETS, max(2, -(-10 * chip.l2_bytes // operands) + 1))
        self._reuse_bytes = (self._sets - 1) * operands if self._sets < MAX_SETS else None

    def measure(self, candidate: Candidate, model: Measured, inspection: Inspection) -> Measured:
        """A measurement of the candidate, after the model's."""
        rng = self._rng
        ratio = median_us(model.timing) / median_us(next(one for one in model.baselines if one.name == AUTOTUNED))
        time_us = self.baseline_us * ratio * rng.uniform(0.9, 1.1)
        launches = max(2, round(SAMPLE_US / time_us * rng.uniform(0.95, 1.1)))
        count = len(model.timing.samples_us)
        return model.model_copy(
            update={
                "tests": self._tests(model.tests),
                "timing": Timing(name=candidate.id, samples_us=_samples(model.timing, time_us, launches, rng)),
                "baselines": tuple(self._baseline(one, median_us(model.timing) / ratio) for one in model.baselines),
                "side": _side(model.side, time_us, rng),
                "telemetry": _telemetry(model.telemetry, rng),
                "inspection": inspection,
                "ruler": self._ruler(launches, count),
            }
        )

    def _baseline(self, model: Timing, reference_us: float) -> Timing:
        rng = self._rng
        time_us = self.baseline_us * median_us(model) / reference_us * rng.uniform(0.997, 1.003)
        samples = _samples(model, time_us, max(2, round(SAMPLE_US / time_us)), rng)
        if model.name not in self._details:
            self._details[model.name] = _TILE.sub(lambda _: f"{8 * rng.randint(1, 40)}x{8 * rng.randint(1, 32)}", model.detail)
        detail = _TIME.sub(f"{time_us * rng.uniform(1.0, 1.02):.3f} us", self._details[model.name])
        return Timing(name=model.name, samples_us=samples, detail=detail)

    def _tests(self, models: Sequence[TestResult]) -> tuple[TestResult, ...]:
        """The same tests. Those of one tier come in another order, and data that is fresh for each step has other errors."""
        rng = self._rng
        fresh, last = rng.getrandbits(SEED_BITS), rng.getrandbits(SEED_BITS)
        tiers = {tier: rng.random() for tier in ("accuracy", "special")}
        ordered = sorted(models, key=lambda _: rng.random())
        shuffled = {tier: iter([one for one in ordered if one.tier == tier]) for tier in tiers}
        tests = []
        for one in (next(shuffled[one.tier]) if one.tier in tiers else one for one in models):
            own = one.tier not in ("exact", "accuracy", "special")
            seed = None if one.seed is None else last if one.name == "after-timing" else fresh if own else self._seed
            base = self._errors.setdefault(one.name, one.worst * rng.uniform(0.5, 1.0))
            again = own or rng.random() < 0.05
            worst = base * rng.uniform(0.99, 1.01) if again and one.worst else base if not own else 0.0
            tests.append(one.model_copy(update={"worst": worst, "seed": seed}))
        return tuple(tests)

    def _ruler(self, launches: int, count: int) -> Ruler:
        rng = self._rng
        compared = sorted((rng.randrange(count), rng.randrange(launches)) for _ in range(2))
        return Ruler(
            secret=rng.getrandbits(64),
            order=self._order,
            sets=self._sets,
            launches=launches,
            ring_bytes=launches * 2 * self._task.m * self._task.n,
            reuse_bytes=self._reuse_bytes,
            projected=(launches + 1) * count,
            compared=tuple(ComparedOutput(sample=sample, launch=launch) for sample, launch in compared),
        )


def inspect_like(candidate: Candidate, model: Inspection) -> Inspection:
    """The inspection of a candidate, after the model's. Equal candidates have equal ones."""
    rng = Random(candidate.source)
    launch = candidate.plan.launches[0]
    threads = math.prod(int(size) for size in launch.block)
    width = str((candidate.origin.schedule or {}).get("block_n"))
    kernel = model.kernels[0].model_copy(
        update={
            "registers": min(255, max(24, model.kernels[0].registers + rng.randint(-12, 12))),
            "dynamic_smem_bytes": launch.dynamic_smem,
            "threads": threads,
            "occupancy": threads * model.kernels[0].ctas_per_sm / 2048,
        }
    )
    return model.model_copy(
        update={
            "cubin_sha256": f"{rng.getrandbits(256):064x}",
            "compile_seconds": model.compile_seconds * rng.uniform(0.7, 1.4),
            "kernels": (kernel,),
            "opcodes": {name: _near(number, rng) for name, number in model.opcodes.items() if rng.random() < 0.98},
            "mma": tuple(_WIDTH.sub(width, line) for line in model.mma),
        }
    )


def time_out_like(model: Step, candidate: Candidate) -> TimedOut:
    """A candidate that took too long, after the model."""
    assert isinstance(model.evaluation, TimedOut)
    assert model.evaluation.inspection is not None
    return model.evaluation.model_copy(update={"inspection": inspect_like(candidate, model.evaluation.inspection)})


def profile_like(model: Profile, rng: Random) -> Profile:
    """Other counts of the same launches."""
    launches = []
    for launch in model.launches:
        metrics = {name: _as_counted(value, value * rng.uniform(0.8, 1.2)) for name, value in launch.metrics.items()}
        launches.append(launch.model_copy(update={"metrics": metrics}))
    return model.model_copy(update={"launches": tuple(launches)})


def _as_counted(model: float, value: float) -> float:
    return float(round(value)) if model.is_integer() else round(value, 2)


def _near(count: int, rng: Random) -> int:
    if count < 5:
        return count if rng.random() < 0.8 else max(1, count + rng.choice((-1, 1)))
    return round(count * rng.uniform(0.75, 1.25))


def _samples(model: Timing, time_us: float, launches: int, rng: Random) -> tuple[float, ...]:
    """As many samples as the model's, with its noise: ticks of the clock as the driver gives them, in milliseconds of f32."""
    middle = median_us(model)
    shuffled = rng.sample(model.samples_us, len(model.samples_us))
    deviations = [sample / middle * rng.uniform(0.9998, 1.0002) for sample in shuffled]
    ticks = (max(1, round(time_us * one * launches / TICK_US)) for one in deviations)
    return tuple(elapsed_ms * 1000 / launches for elapsed_ms in array("f", (tick * TICK_US / 1000 for tick in ticks)))


def _side(model: SideFigures, time_us: float, rng: Random) -> SideFigures:
    if model.hot_l2_us is None:
        return model
    return SideFigures(
        host_launch_us=round(rng.uniform(4.8, 5.6), 2),
        hot_l2_us=time_us * rng.uniform(0.7, 0.95),
        wall_clock_us=round(time_us + rng.uniform(7, 9), 4),
        without_programmatic_us=time_us * rng.uniform(1.0, 1.3) if model.without_programmatic_us else None,
    )


def _telemetry(model: Telemetry, rng: Random) -> Telemetry:
    """The model's clocks and reasons; temperature and power change where the model's change."""
    warmer = rng.randint(-6, 6)
    powers = {one: round(one * rng.uniform(0.9, 1.1), 3) for one in model.power_w}
    return model.model_copy(
        update={
            "temperature_c": tuple(one + warmer for one in model.temperature_c),
            "power_w": tuple(powers[one] for one in model.power_w),
        }
    )
