"""The files with which a program uses a module's result: the original problem, the plan in numbers, and `module.py`."""

import ast
from collections.abc import Callable
from pathlib import Path

from cudal2.modules.stored_module import STORED, StoredModule
from cudal2_agent.contract.plan.plan import ResolvedPlan
from cudal2_agent.contract.records.module_task import Arithmetic, ModuleTask
from cudal2_agent.sandbox.modules.tracing.problem import dims_of, with_dims

MODULE = "module.py"

_TEXT = '''"""{name}: the class `Model` of problem.py, whose calls the kernels of this folder run where they fit.

Import it in place of the original: the constructor, the state dict and the results are the same.
PyTorch runs the original where sizes, element types, the GPU or the mode differ; `model.cudal2.fallbacks` counts why.
It needs the files of this folder, and the package cudal2-agent.{cast}
"""

from pathlib import Path

from cudal2.modules import serve
{imports}
Model = serve(Path(__file__).resolve().parent{argument})
'''
_IMPORTS = '''from cudal2_agent.sandbox.modules.library_calls import arithmetic_of, run_native


def run_call(operation, tensors, task):
    """A library operation of the plan, in the arithmetic of the task."""
    with arithmetic_of(task.arithmetic):
        run_native(operation, tensors)


'''
_CASTS = {Arithmetic.F16: "half", Arithmetic.BF16: "bfloat16"}


def write_module(folder: Path, task: ModuleTask, plan: ResolvedPlan, write: Callable[[Path, str], None]) -> None:
    """`plan`: of the best candidate. `write`: a whole file, or none. `problem.py` is there already."""
    write(folder / STORED, StoredModule(task=task, plan=plan).model_dump_json() + "\n")
    cast = _CASTS.get(task.arithmetic)
    text = _TEXT.format(
        name=" ".join(task.name.replace('"', "'").replace("\\", "/").split()),
        cast=f"\nThe kernels take parameters and inputs of {task.arithmetic}: call `.{cast}()` on the module." if cast else "",
        imports=_IMPORTS if plan.calls else "",
        argument=", run_call" if plan.calls else "",
    )
    write(folder / MODULE, text)


def problem_at(task: ModuleTask) -> str:
    """The text of the problem file with the task's sizes; the file's own text where these are its sizes."""
    own = dims_of(task.problem)
    changed = {name: size for name, size in task.dims.items() if own.get(name, size) != size}
    return task.problem if not changed else ast.unparse(with_dims(task.problem, changed)) + "\n"
