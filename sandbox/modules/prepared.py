"""A case of one task, drawn and with its references."""

from dataclasses import dataclass

import torch

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.cases import OWN_VALUES, Case, Inputs, draw
from cudal2_agent.sandbox.modules.executor import Values
from cudal2_agent.sandbox.modules.pieces import AnyJudge, judge_of

_ENOUGH = 0.5  # of the outputs must be finite for a case that is not about special values


@dataclass(frozen=True)
class DrawnCase:
    """`values`: of every input, parameter and state. `domain`: as in `cases.draw`."""

    case: Case
    values: Inputs
    judge: AnyJudge
    domain: int = 0


def prepare(task: ModuleTask, case: Case, seed: int, device: torch.device, fixed: Values | None = None) -> DrawnCase | None:
    """The case on the first domain where the reference is finite; None where it is on none. `fixed`: values that replace drawn
    ones.
    """
    for domain in range(1 if case.special or case.draw is None else OWN_VALUES + 1):
        values = {**draw(task, case, seed, device, domain=domain), **(fixed or {})}
        judge = judge_of(task, values, seed, nan_is_free=case.nan_is_free, special=case.special)
        if judge.finite >= _ENOUGH or (case.special and judge.finite > 0):
            return DrawnCase(case, values, judge, domain)
    return None
