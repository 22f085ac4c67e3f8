"""Times a whole model with a library and without, on the GPU at hand, and compares what it computes.

Covered: inference and training steps; eager, as one CUDA graph, compiled; errors of outputs and gradients beside those of the
same model in float32; what enabling costs. A way that fails, as a model that no graph can capture, is a note. A compiled
program is compiled with the library and without: with it, the graph may have products with their activations.
Not covered: several GPUs; a model that does not fit twice, for which nothing in float32 is computed.
The file of the user runs in this process, with the user's rights.
"""

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

import cudal2
from cudal2.torch import torch_session
from cudal2_agent.agent.library.advise.recording import called
from cudal2_agent.agent.library.paired_programs import Program, graph_of, paired_times
from cudal2_agent.agent.model_tuning.gpu_shares import gpu_shares, served_calls
from cudal2_agent.agent.model_tuning.tune_records import COMPILED, GpuShares, OutputErrors, PassTimes, Way, WayTimes
from cudal2_agent.agent.model_tuning.tuned_model import TunedModel
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.reward.speedup import Speedup

ROUNDS, WARM_RUNS, SEED = 30, 2, 18
BUILD_S = 600.0


class TimedPass(NamedTuple):
    """What is asked. `library`: its file. `library_sha256`: as of `PassTimes`. `tokens`: None for inputs that take none."""

    model: TunedModel
    tokens: int | None
    training: bool
    library: Path
    library_sha256: str
    environment: str
    ways: tuple[Way, ...]


def time_pass(asked: TimedPass, device: str = "cuda") -> Iterator[PassTimes]:
    """A row after each way, with the ways so far, so that no way is lost with a later one.

    Raises: UsageError for a model that does not run, or does not fit.
    """
    try:
        yield from _Pass(asked, device).times()
    except torch.OutOfMemoryError as exc:
        raise UsageError(f"{asked.model.path}: the model does not fit into the GPU's memory") from exc


class _Pass:
    """One model on the device, and its program."""

    def __init__(self, asked: TimedPass, device: str) -> None:
        assert asked.model.make is not None
        assert asked.model.inputs is not None
        self._asked, self._device = asked, device
        torch._dynamo.reset()
        torch.manual_seed(SEED)
        try:
            self._model = asked.model.make().to(device).train(asked.training)
            given = asked.model.inputs(asked.tokens)
            self._given = tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, given)
            self._program(self._model)()
        except torch.OutOfMemoryError:
            raise
        except Exception as exc:
            raise UsageError(f"{asked.model.path}: {type(exc).__name__}: {exc}") from exc

    def times(self) -> Iterator[PassTimes]:
        notes: list[str] = []
        start_s, memory_bytes = self._enabled_once()
        outputs, gradients = self._errors(notes)
        program = self._program(self._model)
        with cudal2.enable():
            served, asked_for = self._calls(program, notes)
        shares = self._shares(program, notes)
        ways: list[WayTimes] = []
        for way in self._asked.ways:
            if (found := self._timed(way, notes)) is not None:
                ways.append(found)
            yield PassTimes(
                tokens=self._asked.tokens,
                library_sha256=self._asked.library_sha256,
                environment=self._asked.environment,
                ways=tuple(ways),
                served=served,
                asked=asked_for,
                outputs=outputs,
                gradients=gradients,
                shares=shares,
                start_s=start_s,
                memory_bytes=memory_bytes,
                notes=tuple(notes),
                measured_at=datetime.now(UTC),
            )

    def _program(self, model: Any) -> Program:
        """A forward pass without gradients, or a training step, whose gradients keep their place in memory."""
        given, training = self._given, self._asked.training

        def step() -> None:
            if not training:
                with torch.no_grad():
                    called(model, given)
                return
            _loss(called(model, given)).backward()

        return step

    def _enabled_once(self) -> tuple[float, int]:
        """Has every kernel loaded. What that takes, beyond a pass: seconds, and bytes of the GPU's memory."""
        program = self._program(self._model)
        for _ in range(WARM_RUNS):
            self._run(program)
        free = self._free()
        began_s = time.perf_counter()
        with cudal2.enable(self._asked.library):
            self._run(program)
            first_s = time.perf_counter() - began_s
            torch_session.service().builds.wait(BUILD_S)
            self._run(program)
            began_s = time.perf_counter()
            self._run(program)
            later_s = time.perf_counter() - began_s
        return max(0.0, first_s - later_s), max(0, free - self._free())

    def _timed(self, way: Way, notes: list[str]) -> WayTimes | None:
        """None where the way fails, with a note."""
        try:
            plain, served, around = self._programs(way)
            found = paired_times(plain, served, calls=1, rounds=ROUNDS, device=self._device, around=around, warm_runs=WARM_RUNS)
        except Exception as exc:  # noqa: BLE001 (whatever a model of others raises)
            if isinstance(exc, torch.OutOfMemoryError):
                torch.cuda.empty_cache()
            notes.append(_failed(way, exc))
            return None
        speedup = Speedup(baseline="torch", ratio=found.ratio, low=found.low, high=found.high)
        return WayTimes(way=way, before_us=found.plain_us, after_us=found.served_us, speedup=speedup)

    def _programs(self, way: Way) -> tuple[Program, Program, Callable[[], Any]]:
        """Without the library and with it, and what is entered around the second one."""
        step = self._program(self._model)
        for one in self._model.parameters() if self._asked.training else ():
            one.grad = torch.zeros_like(one) if one.requires_grad else None  # a graph adds to what is there
        if way == "eager":
            return step, step, cudal2.enable
        if way == "graph":
            plain = graph_of(step, self._device)
            with cudal2.enable():
                return plain, graph_of(step, self._device), nullcontext
        if way == "compile":
            return self._compiled(), self._served, cudal2.enable
        plain = graph_of(self._compiled("max-autotune-no-cudagraphs"), self._device)
        served = self._served
        with cudal2.enable():
            return plain, graph_of(served, self._device), nullcontext

    def _compiled(self, mode: str | None = None) -> Program:
        compiled = self._program(torch.compile(self._model, mode=mode))
        self._run(compiled)
        return compiled

    @cached_property
    def _served(self) -> Program:
        """What `torch.compile` makes with the library. PyTorch keeps it beside the others, since its backend is another one."""
        compiled = self._program(torch.compile(self._model, backend=_with_library))
        with cudal2.enable():
            self._run(compiled)
            torch_session.service().builds.wait(BUILD_S)
            self._run(compiled)
        return compiled

    def _calls(self, program: Program, notes: list[str]) -> tuple[int, int]:
        """Of a pass as most ways run it: of an eager one, unless all are compiled."""
        if COMPILED.issuperset(self._asked.ways):
            try:
                program = self._served
            except Exception as exc:  # noqa: BLE001 (whatever a model of others raises)
                notes.append(_failed("compiled calls", exc))
        return _calls_of(program)

    def _shares(self, program: Program, notes: list[str]) -> GpuShares | None:
        if self._device != "cuda":
            return None
        try:
            with cudal2.enable():
                return gpu_shares(program)
        except Exception as exc:  # noqa: BLE001 (a profiler that the machine does not allow)
            notes.append(_failed("shares of the GPU time", exc))
            return None

    def _errors(self, notes: list[str]) -> tuple[OutputErrors | None, OutputErrors | None]:
        """Of outputs, and of gradients in training; without dropout, whose draws would differ.

        Where compiled inference is asked for, the larger ones of the eager pass and the compiled one.
        """
        self._model.eval()
        try:
            exact = self._values(copy.deepcopy(self._model).float(), _floats(self._given))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            notes.append("errors: not measured: the model in float32 does not fit beside it")
            return None, None
        except Exception as exc:  # noqa: BLE001 (a model that cannot be copied or converted)
            notes.append(_failed("errors", exc))
            return None, None
        else:
            plain = [self._values(one, self._given) for one in self._forms("inductor")]
            with cudal2.enable():
                served = [self._values(one, self._given) for one in self._forms(_with_library)]
        finally:
            self._model.train(self._asked.training)
        found = [
            OutputErrors(torch=_largest(ones, true), library=_largest(others, true)) if true else None
            for ones, others, true in zip(zip(*plain, strict=True), zip(*served, strict=True), exact, strict=True)
        ]
        return found[0], found[1]

    def _forms(self, backend: Any) -> list[Any]:
        """The model, and behind it what is compiled of it, where that is asked for and works."""
        if self._asked.training or COMPILED.isdisjoint(self._asked.ways):
            return [self._model]
        compiled = torch.compile(self._model, backend=backend)
        try:
            self._run(self._program(compiled))
        except Exception:  # noqa: BLE001 (the way itself says why)
            return [self._model]
        return [self._model, compiled]

    def _values(self, model: Any, given: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Outputs, and in training the gradients of the parameters, as float64 on the CPU."""
        for one in model.parameters():
            one.grad = None
        with nullcontext() if self._asked.training else torch.no_grad():
            answer = called(model, given)
        outputs = [one for one in tree_leaves(answer) if isinstance(one, torch.Tensor) and one.is_floating_point()]
        if self._asked.training:
            _loss(answer).backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        kept = [one.detach().double().cpu() for one in outputs], [one.detach().double().cpu() for one in gradients]
        for one in model.parameters():
            one.grad = None
        return kept

    def _run(self, program: Program) -> None:
        program()
        if self._device == "cuda":
            torch.cuda.synchronize()

    def _free(self) -> int:
        """Bytes that the device has left, without what PyTorch keeps for itself."""
        if self._device != "cuda":
            return 0
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])


def _with_library(graph: Any, inputs: Any) -> Any:
    """Inductor, by another name than it has without the library."""
    from torch._inductor.compile_fx import compile_fx

    return compile_fx(graph, inputs)


def _failed(what: str, exc: Exception) -> str:
    """A note."""
    return f"{what}: not measured: {type(exc).__name__}: {' '.join(str(exc).split())[:300]}"


def _loss(answer: Any) -> torch.Tensor:
    """A number whose gradient reaches every output. A mean's gradients would vanish in half precision."""
    outputs = [one for one in tree_leaves(answer) if isinstance(one, torch.Tensor) and one.requires_grad]
    if not outputs:
        raise UsageError("no output of the model needs a gradient; leave out --training")
    total: torch.Tensor = sum(one.float().square().sum() for one in outputs)
    return total / max(1, sum(one.numel() for one in outputs)) ** 0.5


def _floats(given: Any) -> Any:
    return tree_map(lambda one: one.float() if isinstance(one, torch.Tensor) and one.is_floating_point() else one, given)


def _largest(found: Sequence[Sequence[torch.Tensor]], true: Sequence[torch.Tensor]) -> float:
    return max(_relative(one, true) for one in found)


def _relative(found: Sequence[torch.Tensor], true: Sequence[torch.Tensor]) -> float:
    """Root mean square of the errors of all tensors over that of the values."""
    errors = sum(float((one - other).square().sum()) for one, other in zip(found, true, strict=True))
    values = sum(float(other.square().sum()) for other in true)
    return (errors / values) ** 0.5 if values else 0.0


def _calls_of(program: Program) -> tuple[int, int]:
    """Products that the library runs in one run of a program, and all that it is asked for."""
    counts = torch_session.service().counts
    served, left = served_calls(), sum(counts.fallbacks().values())
    program()
    ran = served_calls() - served
    return ran, ran + sum(counts.fallbacks().values()) - left
