"""The predicted time of a built kernel, with the time that each resource would need alone.

Covered: device plans on chips whose PTX the emulator reads, offline. Not covered: a single launch onto an idle GPU (server
mode), the clock's answer to power, and L2 contents that survive between CTAs beyond the operands' own sizes.
"""

from dataclasses import dataclass

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.evaluation import Prediction
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.task import GemmTask, TimingMode
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.sandbox.emulator.kernel import EmulatedKernel
from cudal2_agent.sandbox.timing_model.correction import fitted
from cudal2_agent.sandbox.timing_model.kernel_features import features_of
from cudal2_agent.sandbox.timing_model.launches import ModelledLaunch
from cudal2_agent.sandbox.timing_model.rates import TimingRates, rates_of
from cudal2_agent.sandbox.timing_model.trace import Traced, trace


@dataclass(frozen=True)
class Predicted:
    """Unit: microseconds. `plain_us`: the time without programmatic launch. `terms`: of each resource alone.

    `replayed_us`: what the replay says; `correction`: the fitted factor by which it is multiplied.
    """

    replayed_us: float
    correction: float
    plain_us: float
    terms: dict[str, float]
    features: dict[str, float]

    @property
    def predicted_us(self) -> float:
        return self.replayed_us * self.correction


def predict(kernel: EmulatedKernel, inspection: Inspection, chip: Chip) -> Prediction | None:
    """The predicted time of a kernel's plan, launched back to back; None in server mode, which the model does not know."""
    task = kernel.task
    if task.mode is not TimingMode.OFFLINE:
        return None
    predicted = predict_traced(trace(kernel), inspection, task, chip)
    name = f"timing-model on {chip.name}{'' if rates_of(chip).fitted else ', rates not fitted'}"
    return Prediction(
        predicted_us=predicted.predicted_us,
        model=name,
        floor_us=roofline_us(task, chip),
        terms=predicted.terms,
        correction=predicted.correction,
    )


def predict_traced(
    traced: tuple[Traced, ...], inspection: Inspection, task: GemmTask, chip: Chip, rates: TimingRates | None = None
) -> Predicted:
    """The time of a kernel whose launches were traced. `rates`: the chip's own if None."""
    rates = rates or rates_of(chip)
    launches = [ModelledLaunch(each, inspection, task, chip, rates) for each in traced]
    ours = sum(each.time_us(programmatic=True) for each in launches)
    plain = sum(each.time_us(programmatic=False) for each in launches)
    terms = {"launch": len(launches) * rates.launch_us, "DRAM": task.operand_bytes / rates.dram_bytes_per_us}
    for launch in launches:
        for name, value in launch.terms().items():
            terms[name] = terms.get(name, 0.0) + value
    features = features_of(launches, ours, terms, task, chip, rates)
    factor = fitted().factor(features) if rates.fitted else 1.0
    return Predicted(ours, factor, plain, terms, features)
