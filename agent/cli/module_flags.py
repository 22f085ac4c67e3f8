"""The task that `--problem FILE` or `--task NAME` states: read, traced in a jailed child, at the sizes that the flags name."""

import re
from functools import partial
from pathlib import Path

from cudal2_agent.agent.cli.arguments import choice, read_target
from cudal2_agent.agent.tasks.named_problems import problem_path
from cudal2_agent.agent.tasks.task_check import soundness_of
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_task import MAX_PROBLEM_BYTES, Arithmetic, ModuleTask
from cudal2_agent.contract.records.task import TimingMode
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.sandbox.modules.tracing.tracer import open_tracer

CHECK_S = 30.0  # of a check of the tests before a search; one that takes longer leaves the task unchecked
_DIM = re.compile(r"\s*([A-Za-z_]\w{0,63})\s*=\s*(\d{1,12})\s*", re.ASCII)


def read_module(
    text: str, name: str, dims: str | None, arithmetic: str, training: bool, arch: str | None, mode: str, settings: Settings
) -> ModuleTask:
    """With its soundness. `text`: of the problem file.

    Raises: UsageError, which names the wrong flag or what is wrong with the file.
    """
    sizes, target = read_dims(dims), read_target(arch, settings)
    kind, timing = choice("--arithmetic", Arithmetic, arithmetic), choice("--mode", TimingMode, mode)
    with open_tracer() as tracer:
        task = tracer.trace(text, name, sizes, kind, training, target, timing)
        if empty := [buffer.name for buffer in task.buffers if not buffer.elements]:
            raise UsageError(f"{name}: {empty[0]} has no elements at these sizes, so there is no kernel to write")
        found, _ = soundness_of(task, tracer, partial(tracer.soundness, timeout_s=CHECK_S), settings.seed)
    return task.model_copy(update={"soundness": found})


def read_problem(path: Path) -> str:
    """The text of a problem file. Raises: UsageError."""
    try:
        if path.stat().st_size > MAX_PROBLEM_BYTES:
            raise UsageError(f"{path} has more than {MAX_PROBLEM_BYTES >> 10} KiB; a problem file is shorter")
        return path.read_text(encoding="utf-8-sig")
    except OSError as exc:
        raise UsageError(f"{path} cannot be read ({exc.strerror}); name a problem file in KernelBench's form") from exc
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is not UTF-8 text; name a problem file in KernelBench's form") from exc


def read_named(name: str, settings: Settings) -> str:
    """The text of the problem file behind a name. Raises: UsageError."""
    return read_problem(problem_path(name, settings.home))


def read_dims(text: str | None) -> dict[str, int]:
    """`batch_size=16,features=64` as sizes by name. Raises: UsageError."""
    sizes: dict[str, int] = {}
    for part in text.split(",") if text else []:
        found = _DIM.fullmatch(part)
        if found is None:
            raise UsageError(f"--dims {part.strip()!r} is not NAME=NUMBER; write for example --dims batch_size=16,dim=64")
        if found[1] in sizes:
            raise UsageError(f"--dims names {found[1]} twice")
        sizes[found[1]] = int(found[2])
    return sizes
