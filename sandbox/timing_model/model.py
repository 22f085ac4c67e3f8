"""The predicted time of a built kernel, with the time that each resource would need alone.

Covered: device plans on chips whose PTX the emulator reads, offline. Not covered: a single launch onto an idle GPU (server
mode), the clock's answer to power, and L2 contents that survive between CTAs beyond the operands' own sizes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

import numpy as np

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import NOT_FITTED, NOT_PREDICTED, LaunchTime, Prediction
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.whole_file import whole_file
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.timing_model.kernel_features import features_of
from cudal2_agent.sandbox.timing_model.launches import ModelledLaunch
from cudal2_agent.sandbox.timing_model.rates import TimingRates, rates_of
from cudal2_agent.sandbox.timing_model.trace import MAX_COUNTED, Traced, trace

# The last step of a prediction: a bounded factor that was fitted to what the replay leaves unexplained.
#
# Covered: kernels whose every feature lies inside the range that the factor was fitted on. Of others it is 1.
# Not covered: chips whose rates were not fitted.
# The factor's logarithm is the sum of binary trees. `python -m benchmarks.emulator.timing_model.fit_correction` fits them.
FITTED = Path(__file__).parent / "correction.npz"
MIN_FACTOR, MAX_FACTOR = 0.5, 2.0
LEAF = -1  # in place of a node's feature


@dataclass(frozen=True)
class Correction:
    """Shape: names, low, high (features,); the others (trees, nodes).

    `low`, `high`: the range of each feature that was fitted on. A node asks whether a feature (`asked`) is at most `limit`, and
    goes on at `left`, else at `right`. The root is node 0. Of a leaf `value` counts, a logarithm.
    """

    names: np.ndarray
    low: np.ndarray
    high: np.ndarray
    asked: np.ndarray
    limit: np.ndarray
    left: np.ndarray
    right: np.ndarray
    value: np.ndarray

    def factor(self, features: Mapping[str, float]) -> float:
        """By what a predicted time is multiplied."""
        values = np.array([features[name] for name in self.names.tolist()])
        if (values < self.low).any() or (values > self.high).any():
            return 1.0
        return min(max(math.exp(float(self.logarithms(values[None])[0])), MIN_FACTOR), MAX_FACTOR)

    def logarithms(self, values: np.ndarray) -> np.ndarray:
        """Shape: values (kernels, features); out (kernels,)."""
        trees = np.arange(len(self.asked))
        places = np.zeros((len(values), len(trees)), dtype=np.intp)
        while ((asked := self.asked[trees, places]) != LEAF).any():
            answers = np.take_along_axis(values, np.maximum(asked, 0), axis=1) <= self.limit[trees, places]
            onward = np.where(answers, self.left[trees, places], self.right[trees, places])
            places = np.where(asked == LEAF, places, onward)
        return np.asarray(self.value[trees, places].sum(axis=1))

    def write(self, path: Path) -> None:
        """Raises: OSError."""
        with whole_file(path) as target, target.open("wb") as file:
            np.savez_compressed(file, **{field.name: getattr(self, field.name) for field in fields(self)})


@cache
def fitted(path: Path = FITTED) -> Correction:
    with np.load(path, allow_pickle=False) as read:
        return Correction(**{field.name: read[field.name] for field in fields(Correction)})


@dataclass(frozen=True)
class Predicted:
    """Unit: microseconds. `plain_us`: the time without programmatic launch. `terms`: of each resource alone.

    `replayed_us`: what the replay says, the sum of `launches`; `correction`: the fitted factor by which it is multiplied.
    """

    replayed_us: float
    correction: float
    plain_us: float
    terms: dict[str, float]
    features: dict[str, float]
    launches: tuple[LaunchTime, ...] = ()

    @property
    def predicted_us(self) -> float:
        return self.replayed_us * self.correction


def predict(kernel: EmulatedKernel, inspection: Inspection, chip: Chip) -> Prediction | None:
    """The predicted time of a kernel's plan, launched back to back; None in server mode, which the model does not know.

    Where it is not known how long a kernel goes on behind its trace, the roofline stands in, and its name says why.
    """
    task = kernel.product
    if task.mode is not TimingMode.OFFLINE:
        return None
    traced = trace(kernel)
    if endless := next((each for each in traced if not each.products and each.left_out is None), None):
        floor_us = roofline_us(task, chip)
        return Prediction(predicted_us=floor_us, model=f"{NOT_PREDICTED}: {_why(endless)}", floor_us=floor_us)
    predicted = predict_traced(traced, inspection, task, chip)
    name = f"timing-model on {chip.name}{'' if rates_of(chip).fitted else f', {NOT_FITTED}'}"
    return Prediction(
        predicted_us=predicted.predicted_us,
        model=name,
        floor_us=roofline_us(task, chip),
        terms=predicted.terms,
        correction=predicted.correction,
        launches=predicted.launches,
    )


def _why(traced: Traced) -> str:
    return f"{traced.launch.entry} takes more than {MAX_COUNTED:.0e} operations of warps in one cluster, or waits for others"


def predict_traced(
    traced: tuple[Traced, ...], inspection: Inspection, task: GemmTask, chip: Chip, rates: TimingRates | None = None
) -> Predicted:
    """The time of a kernel whose launches were traced. `rates`: the chip's own if None."""
    rates = rates or rates_of(chip)
    launches = [ModelledLaunch(each, inspection, task, chip, rates) for each in traced]
    ours = sum(each.time_us(programmatic=True) for each in launches)
    plain = sum(each.time_us(programmatic=False) for each in launches)
    terms = {"launch": len(launches) * rates.launch_us, "DRAM": task.operand_bytes / rates.dram_bytes_per_us}
    times = tuple(
        LaunchTime(entry=each.traced.launch.entry, parts=each.parts(), terms=each.terms(), waves=each.waves)
        for each in launches
    )
    for launch in times:
        for name, value in launch.terms.items():
            terms[name] = terms.get(name, 0.0) + value
    features = features_of(launches, ours, terms, task, chip, rates)
    factor = fitted().factor(features) if rates.fitted else 1.0
    return Predicted(ours, factor, plain, terms, features, times)
