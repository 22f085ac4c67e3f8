"""The fuser's kernels for tasks of the corpus: the axes that it expects to be best, and others spread over its space.

Cross entropy is missing: problem files never have it as one operation (the tracer takes losses apart).
"""

from collections.abc import Callable, Iterator

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import grouped
from cudal2_agent.policies.fusion.space import choices
from tests.sandbox.emulator.modules import graphs
from tests.sandbox.emulator.modules.corpus.kernel import Size

PLACES = (0.0, 0.4, 0.8)  # in the space of each kernel
TASKS: tuple[tuple[Callable[..., ModuleTask], Size], ...] = (
    (graphs.row_softmax, (5, 96)),
    (graphs.row_softmax, (4, 75, "f16")),
    (graphs.column_softmax, (40, 36)),
    (graphs.layer_norm, (6, 128)),
    (graphs.layer_norm, (3, 50, "bf16")),
    (graphs.gelu, (1000,)),
    (graphs.gelu, (513, "f16")),
    (graphs.linear_norm, (13, 40, 24)),
    (graphs.linear_relu, (17, 24, 33)),
    (graphs.linear_relu, (20, 40, 48, "f16")),
    (graphs.max_pool, (3, 13, 10)),
    (graphs.average_pool, (2, 9, 12)),
    (graphs.row_scan, (4, 300)),
    (graphs.mse_loss, (3000,)),
    (graphs.batch_norm, (4, 3, 25)),
    (graphs.masked, (9, 77)),
    (graphs.argmax, (6, 70)),
    (graphs.square_sum, (37, 50)),
)


def candidates(task: ModuleTask) -> Iterator[Candidate]:
    """One for each place, each once."""
    groups, seen = grouped(task), set[str]()
    space = choices(groups, REFERENCE_CHIPS[task.arch])
    for place in PLACES:
        made = written(task, groups, {name: each[int(place * len(each))] for name, each in space.items()})
        if made.id not in seen:
            seen.add(made.id)
            yield made
