"""Metric sets: what is counted on an arch, under short names that mean the same on all of them."""

import tomllib
from functools import cache
from importlib import resources

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.task import Arch

_COMMON = "common"


class MetricSpec(Record):
    """One quantity. `metric`: its name in Nsight Compute. The stored value is ncu's, in `unit`, times `scale`."""

    metric: str
    unit: str
    meaning: str
    scale: float = 1.0


class MetricSet(Record):
    """The quantities counted on one arch: short name → how to ask for it."""

    name: str
    metrics: dict[str, MetricSpec]


@cache
def load_metric_set(arch: Arch) -> MetricSet:
    """The set of an arch: the common one, with the metrics that the arch names differently or has alone."""
    sets = tomllib.loads(resources.files("cudal2_agent.sandbox.profiling").joinpath("metrics.toml").read_text("utf-8"))
    common, own = sets[_COMMON], sets.get(arch.value, {})
    merged = {short: {**common.get(short, {}), **own.get(short, {})} for short in {**common, **own}}
    return MetricSet(name=arch.value, metrics={short: MetricSpec(**spec) for short, spec in merged.items()})
