"""Whether a task's tests tell wrong programs from right ones: zeros, a constant, an old answer, the input, and the module
without one of its operations.

A wrong program is accepted on `ours` if no case of ours refuses it. A task of which one is accepted gives no reward, because a
kernel that does less work than it claims could earn it. Leaving out an operation that is redundant (`redundancy.py`) is right.

Not covered: programs that are wrong in another way, such as a module without two of its operations.
"""

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from cudal2_agent.contract.records.module_graph import FalseAnswer, Graph, Soundness
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Role
from cudal2_agent.sandbox.modules.bounds import as_booleans
from cudal2_agent.sandbox.modules.cases import CASES, OWN, Case, Inputs, draw
from cudal2_agent.sandbox.modules.interpreter import Interpreter, without
from cudal2_agent.sandbox.modules.operators import MOVES, operation
from cudal2_agent.sandbox.modules.prepared import DrawnCase, prepare
from cudal2_agent.sandbox.modules.redundancy import is_redundant

_ROUNDS = 2  # how often each case of ours is drawn before what all accept counts
_NAMED = 3  # operations in a reason


def check(task: ModuleTask, seed: int, device: torch.device | None = None) -> Soundness:
    """Try the wrong programs on the problem's own inputs and on ours. Raises: ValueError for a graph that does not run."""
    device = device or torch.device("cpu")
    ours = [case for case in CASES if case is not OWN and not case.special]
    own, _ = _survivors(task, [OWN], "own", seed, device)
    left, judged = _survivors(task, ours * _ROUNDS, "ours", seed, device)
    redundant = [each.operation for each in left if each.kind == "dropped" and is_redundant(task, each.operation)]
    left = tuple(each for each in left if each.operation not in redundant)
    if not judged:
        reason = "the reference is finite on none of our inputs"
    elif norm := _norm_of_one(task):
        reason = f"{norm} is over one element at these sizes, so that nothing before it matters; check at larger ones"
        return Soundness(status="unchecked", reason=reason, accepted=own, seed=seed)
    elif left:
        reason = _reason(task, left)
    else:
        note = f"redundant: {_listed(task, redundant)}" if redundant else ""
        return Soundness(status="sound", reason=note, accepted=own, seed=seed)
    return Soundness(status="unsound", reason=reason, accepted=(*own, *left), seed=seed)


def _norm_of_one(task: ModuleTask) -> str:
    """The first group norm whose groups are single elements; empty where there is none."""
    norms = (node for node in task.graph.nodes if operation(node) == "native_group_norm")
    return next((node.name for node in norms if node.args[4] * node.args[5] == node.args[6]), "")


def _survivors(
    task: ModuleTask, cases: Sequence[Case], on: str, seed: int, device: torch.device
) -> tuple[tuple[FalseAnswer, ...], int]:
    """The wrong programs that every case accepts, and how many cases were judged."""
    left, judged = _programs(task), 0
    for index, case in enumerate(cases):
        prepared = prepare(task, case, seed + index, device) if left else None
        if prepared is None:
            continue
        judged += 1
        world = _World(task, prepared, seed + index)
        left = {answer: program for answer, program in left.items() if world.accepts(program)}
    return tuple(answer.model_copy(update={"on": on}) for answer in left), judged


class _World:
    """One case: its values, and what wrong programs may know of them."""

    def __init__(self, task: ModuleTask, prepared: DrawnCase, seed: int) -> None:
        self.task, self._prepared, self._seed = task, prepared, seed
        self.values = as_booleans(task, prepared.values)

    def accepts(self, program: "Program") -> bool:
        outputs = program(self)
        return outputs is not None and self._prepared.judge.accepts(outputs)

    @cached_property
    def old(self) -> Inputs:
        """The outputs for other inputs, with the same parameters and states."""
        device, case, domain = next(iter(self.values.values())).device, self._prepared.case, self._prepared.domain
        drawn = as_booleans(self.task, draw(self.task, case, self._seed + 2**40, device, domain=domain))
        inputs = {buffer.name for buffer in self.task.buffers if buffer.role is Role.INPUT}
        other = {name: drawn[name] if name in inputs else value for name, value in self.values.items()}
        return Interpreter(self.task.graph, str(device)).run(other)

    def left_out(self, node: str) -> Inputs | None:
        """The module's outputs without one operation; only what follows it runs again."""
        graph = without(self.task, node)
        if graph is None:
            return None
        reached = {node}
        for each in graph.nodes:
            if reached.intersection(each.inputs()):
                reached.add(each.name)
        nodes = tuple(each for each in graph.nodes if each.name in reached)
        needed = {name for each in nodes for name in each.inputs()} - reached
        if not needed <= self._known.keys():  # one needs an operation with several results
            return Interpreter(graph, self._device).run(self.values)
        changed = {name: value for name, value in graph.outputs.items() if value in reached}
        part = graph.model_copy(update={"nodes": nodes, "outputs": changed})
        kept = {name: self._known[value] for name, value in graph.outputs.items() if name not in changed}
        return kept | Interpreter(part, self._device).run({name: self._known[name] for name in needed})

    @property
    def _device(self) -> str:
        return str(next(iter(self.values.values())).device)

    @cached_property
    def _known(self) -> Inputs:
        single = {node.name: node.name for node in self.task.graph.nodes if len(node.results) == 1}
        return self.values | Interpreter(self._with_outputs(single), self._device).run(self.values)

    def _with_outputs(self, outputs: dict[str, str]) -> Graph:
        return self.task.graph.model_copy(update={"outputs": outputs})


Program = Callable[[_World], Inputs | None]


def _programs(task: ModuleTask) -> dict[FalseAnswer, Program]:
    """The wrong programs of a task, by what they are."""
    found: dict[FalseAnswer, Program] = {
        FalseAnswer(kind="zeros", on="own"): lambda world: {name: torch.zeros_like(each) for name, each in world.old.items()},
        FalseAnswer(kind="constant", on="own"): lambda world: {name: _flat(each) for name, each in world.old.items()},
        FalseAnswer(kind="other-input", on="own"): lambda world: world.old,
        FalseAnswer(kind="identity", on="own"): _identity,
    }
    for node in task.graph.nodes:
        if len(node.results) == 1 and node.op != "getitem" and operation(node) not in MOVES:
            answer = FalseAnswer(kind="dropped", on="own", operation=node.name)
            found[answer] = lambda world, name=node.name: world.left_out(name)  # type: ignore[misc]
    return found


def _flat(output: torch.Tensor) -> torch.Tensor:
    """Everywhere the mean of an old answer."""
    return torch.full_like(output, output.double().nan_to_num(0, 0, 0).mean().item()) if output.numel() else output


def _identity(world: _World) -> Inputs | None:
    """An input of the shape of every output; None where an output has none."""
    found = Inputs()
    for name, output in world.old.items():
        alike = (
            value
            for buffer in world.task.buffers
            if buffer.role is Role.INPUT
            and (value := world.values[buffer.name]).shape == output.shape
            and value.dtype == output.dtype
        )
        value = next(alike, None)
        if value is None:
            return None
        found[name] = value
    return found


_WORDS = {
    "zeros": "zeros are accepted",
    "constant": "a constant is accepted",
    "other-input": "the answer for other inputs is accepted",
    "identity": "the input itself is accepted",
}


def _reason(task: ModuleTask, left: Sequence[FalseAnswer]) -> str:
    """What our cases accept, in one line."""
    words = [_WORDS[answer.kind] for answer in left if answer.kind in _WORDS]
    dropped = [answer.operation for answer in left if answer.kind == "dropped"]
    if dropped:
        words.append(f"leaving out {_listed(task, dropped)} changes nothing that a test sees")
    return "; ".join(words)


def _listed(task: ModuleTask, names: Sequence[str]) -> str:
    kinds = {node.name: operation(node) for node in task.graph.nodes}
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"{name} ({kinds[name]})" for name in names[:_NAMED]) + more
