"""What a published module computes, judged on every case; and what it keeps, changes and leaves on other streams.

Inputs are those of the case. Weights stay those that it was built with, because many prepare them in their constructor.
"""

from collections.abc import Iterator, Mapping

import torch

from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.records.named_buffer import Buffer, BufferElement
from cudal2_agent.sandbox.cuda.modules.tensors import as_computed
from cudal2_agent.sandbox.cuda.published.instances import Instance, Published
from cudal2_agent.sandbox.cuda.published.published_program import InstanceProgram, input_names, output_names
from cudal2_agent.sandbox.cuda.published.switches import Switches
from cudal2_agent.sandbox.modules.cases import CASES, NORMAL, OWN, draw
from cudal2_agent.sandbox.modules.executor import Run, differing
from cudal2_agent.sandbox.modules.interpreter import TYPES
from cudal2_agent.sandbox.modules.prepared import DrawnCase, prepare

WARM_UP = 3  # calls before streams are looked at
_ROUNDS = (NORMAL, OWN)


class WrongForm(Exception):
    """A result that has not the outputs of the problem."""


class Cases:
    """Judges one instance. As `tests` goes on: `findings`: what is suspicious, in words; `changed_input`: one that it wrote."""

    def __init__(
        self, task: ModuleTask, published: Published, instance: Instance, place: torch.device, switches: Switches, seed: int
    ) -> None:
        self._task, self._published, self._instance, self._place = task, published, instance, place
        self._switches, self._seed = switches, seed
        self._buffers = {buffer.name: buffer for buffer in task.buffers}
        self.findings: list[str] = []
        self.changed_input = ""

    def tests(self) -> Iterator[TestResult]:
        """Every test, whatever came before. Raises: WrongForm; whatever the module raises."""
        for case in CASES:
            prepared = prepare(self._task, case, self._seed, self._place, self._instance.weights)
            if prepared is not None:
                yield self._judged(prepared)
        yield from self._kept()
        self._follows_its_weights()

    def other_streams(self) -> int | None:
        """How many kernels and copies of a call run on another stream than the current one; None where no profiler runs."""
        values = {**draw(self._task, OWN, self._seed, self._place), **self._instance.weights}
        inputs = self._inputs(values)
        program = self._program(self._instance.model)
        for _ in range(WARM_UP):
            self._call(program, inputs)
        torch.cuda.synchronize()
        try:
            from torch.profiler import ProfilerActivity, profile

            with profile(activities=[ProfilerActivity.CUDA]) as found:
                torch.zeros(1, device=self._place)  # on the current stream, so that its number is known
                self._call(program, inputs)
                torch.cuda.synchronize()
            assert found.profiler is not None
            events = [each for each in found.profiler.kineto_results.events() if "CUDA" in str(each.device_type())]
        except (RuntimeError, AttributeError, ImportError, AssertionError):
            return None
        on_device = sorted((each.start_ns(), each.device_resource_id()) for each in events)
        return sum(stream != on_device[0][1] for _, stream in on_device) if on_device else None

    def _judged(self, prepared: DrawnCase) -> TestResult:
        case, inputs = prepared.case, self._inputs(prepared.values)
        before = {name: value.clone() for name, value in inputs.items()} if case is NORMAL else {}
        outputs = self._outputs(self._program(self._instance.model), inputs)
        changed = [name for name, value in before.items() if differing(value, inputs[name])]
        if changed:
            self.changed_input = changed[0]
            return _test(case.tier, case.name, f"it changes its input {self.changed_input}")
        verdict = prepared.judge.judge(Run(outputs))
        return _test(case.tier, case.name, "" if verdict.right else verdict.describe(), verdict.worst)

    def _kept(self) -> Iterator[TestResult]:
        """Other values in the same memory, for the same instance: an answer that was kept is the one before."""
        drawn = (prepare(self._task, case, self._seed + 1, self._place, self._instance.weights) for case in _ROUNDS)
        found = [each for each in drawn if each is not None]
        if len(found) < len(_ROUNDS):
            return
        (first, second), program = found, self._program(self._instance.model)
        inputs = self._inputs(first.values)
        before = {name: value.clone() for name, value in self._outputs(program, inputs).items()}
        for name, value in self._inputs(second.values).items():
            inputs[name].copy_(value)
        verdict = second.judge.judge(Run(outputs := self._outputs(program, inputs)))
        if not verdict.right and not any(differing(before[name], each) for name, each in outputs.items()):
            self.findings.append("its answer is kept: new values in the same memory give the earlier answer")
        yield _test("freshness", "inputs-changed-in-place", "" if verdict.right else verdict.describe(), verdict.worst)

    def _follows_its_weights(self) -> None:
        """Whether a state dict that is loaded later counts."""
        prepared = prepare(self._task, NORMAL, self._seed, self._place)
        if not self._instance.weights or prepared is None:
            return
        weights = {name: value for name, value in prepared.values.items() if name in self._instance.weights}
        with self._switches.learning():
            model = self._published.built_with(weights, self._seed, self._place)
        if model is None:
            self.findings.append("its state dict has other names than the reference's")
        elif not prepared.judge.judge(Run(self._outputs(self._program(model), self._inputs(prepared.values)))).right:
            self.findings.append(
                "its weights are fixed when it is built: a state dict that is loaded later gives wrong answers"
            )

    def _program(self, model: torch.nn.Module) -> InstanceProgram:
        return InstanceProgram(model, self._published.inputs, joins=True)

    def _inputs(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: as_computed(values[name], self._buffers[name]).clone() for name in input_names(self._task)}

    def _call(self, program: InstanceProgram, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad(), self._switches.learning():
            return list(program(*inputs.values()))

    def _outputs(self, program: InstanceProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """By name, as they are stored. Raises: WrongForm."""
        results, names = self._call(program, inputs), output_names(self._task)
        if len(results) != len(names):
            raise WrongForm(f"it returns {len(results)} tensors, the problem {len(names)}")
        return {name: self._stored(result, self._buffers[name]) for name, result in zip(names, results, strict=True)}

    def _stored(self, result: torch.Tensor, buffer: Buffer) -> torch.Tensor:
        if type(result) not in (torch.Tensor, torch.nn.Parameter):
            raise WrongForm(f"{buffer.name} is a {type(result).__name__}, no plain tensor")
        if tuple(result.shape) != buffer.shape or result.device.type != self._place.type:
            raise WrongForm(f"{buffer.name} is {tuple(result.shape)} on {result.device}, the problem's is {buffer.shape}")
        if result.dtype is not TYPES[buffer.element]:
            raise WrongForm(f"{buffer.name} has elements of {result.dtype}, the problem's of {TYPES[buffer.element]}")
        stored = result.detach().contiguous()
        return stored.view(torch.uint8) if buffer.element is BufferElement.BOOL else stored


def _test(tier: str, name: str, fault: str, worst: float = 0.0) -> TestResult:
    return TestResult(tier=tier, name=name, passed=not fault, worst=worst, message=fault)
