"""The values of a timed launch: normal numbers as tests draw them, in a distribution for which the reference is finite."""

import torch

from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.sandbox.modules.bounds import Judge
from cudal2_agent.sandbox.modules.cases import NORMAL, draw

FINITE = 0.5  # share of a reference that makes a distribution fit


def drawn_values(task: ModuleTask, seed: int, device: torch.device) -> tuple[dict[str, torch.Tensor], Judge]:
    """Values of every buffer that is read, and the judge of what comes of them."""
    for domain in (0, 1, 2):
        values = draw(task, NORMAL, seed, device, domain=domain)
        judge = Judge(task, values, seed)
        if judge.finite >= FINITE:
            break
    return values, judge
