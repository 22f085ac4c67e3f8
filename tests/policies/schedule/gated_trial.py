"""A kernel of a gated task on the emulated machine, against a float64 reference of its own."""

import numpy as np

from cudal2_agent.contract.plan.chip import LIMITS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.task import UP, GemmTask
from cudal2_agent.sandbox.emulator.executor import Restorer
from cudal2_agent.sandbox.emulator.judgement import run_and_judge
from cudal2_agent.sandbox.emulator.kernel import WORKSPACE, EmulatedKernel
from cudal2_agent.sandbox.verification.activations import SLOPE, activated, activation_bound
from cudal2_agent.sandbox.verification.elements import FORMATS, decode_wide, encode
from tests.policies.schedule.ways_out import SMS
from tests.sandbox.emulator.compiled import PtxCompiler
from tests.sandbox.emulator.trial import interleavings

WRONG = "wrong result"
POISON = 0x7E7E
OF_F32 = 2.0**-22  # of the magnitudes that a sum adds: more than its additions lose


def faults_of(compiler: PtxCompiler, candidate: Candidate, task: GemmTask) -> list[str]:
    """What is wrong in three interleavings."""
    plan = resolve(candidate.plan, task, LIMITS[task.arch], SMS)
    arrays = drawn(task) | {WORKSPACE: np.zeros(plan.workspace_bytes, np.uint8)}
    bound = EmulatedKernel(candidate.id, compiler.compile(candidate, task.arch), plan, task).bind(arrays)
    restore = Restorer(arrays, ("D",))
    exact, allowed = reference(arrays, task)
    faults = []
    for conditions in interleavings(1):
        if fault := run_and_judge(bound, conditions, restore).fault:
            faults.append(str(fault))
            continue
        error = np.abs(decode_wide(np, arrays["D"], task.element) - exact)
        if not (error <= allowed).all():
            faults.append(f"{WRONG}: {np.argwhere(~(error <= allowed))[:4].tolist()}")
    return faults


def drawn(task: GemmTask) -> dict[str, np.ndarray]:
    """Normal numbers for what is read, so that sums of either sign are a few units large; a poison for D."""
    source = np.random.default_rng(task.m + task.n + task.k)
    scale = task.k**-0.25 * 1.5
    arrays = {name: encode(np, scale * source.standard_normal(task.shapes[name]), task.element) for name in ("A", "B", UP)}
    return arrays | {"D": np.full(task.shapes["D"], POISON, np.uint16)}


def reference(arrays: dict[str, np.ndarray], task: GemmTask) -> tuple[np.ndarray, np.ndarray]:
    """D of a task in layout `tn` in float64, and how far a kernel may be from it. Shape: (m, n) each."""
    a, b, up = (decode_wide(np, arrays[name], task.element) for name in ("A", "B", UP))
    sums, factors = a @ b.T, a @ up.T
    of_sums, of_factors = (OF_F32 * np.abs(a) @ np.abs(each.T) for each in (b, up))
    f = activated(np, task.activation, sums)
    of_f = activation_bound(np, sums, f, of_sums)
    before = of_f * np.abs(factors) + (np.abs(f) + SLOPE * of_sums) * of_factors
    exact, limits = f * factors, FORMATS[task.element]
    return exact, before * (1 + limits.roundoff) + limits.roundoff * np.abs(exact) + limits.tiny / 2
