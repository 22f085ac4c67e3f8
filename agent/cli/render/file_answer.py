"""What `verify` and `bench` answer on stdout: one verdict per file, with its tests or its times."""

from collections.abc import Sequence

from agent.cli.files import FileResult
from agent.cli.render.run_answer import speedup_lines
from contract.evaluation import NOT_COVERED, Evaluation, Measured, Unmeasured, Wrong
from contract.speedup import median_us


def print_verdict(result: FileResult, as_json: bool) -> None:
    if as_json:
        print(result.model_dump_json())
        return
    evaluation = result.evaluation
    # The test that failed tells the rest, below and in full.
    print(f"{result.file}: {'wrong' if isinstance(evaluation, Wrong) else verdict(evaluation)}{mark_of(result)}")
    tests = getattr(evaluation, "tests", ())
    for test in tests:
        mark = "not run" if test.name == NOT_COVERED else "passed" if test.passed else "FAILED"
        again = "" if test.passed or test.seed is None else f" (again with --seed {test.seed})"
        print(f"  {mark:<7}  {test.tier}/{test.name}  {test.message}{again}".rstrip())
    inspection = getattr(evaluation, "inspection", None)
    for kernel in inspection.kernels if inspection else ():
        smem_bytes = kernel.static_smem_bytes + kernel.dynamic_smem_bytes
        resident = f", {kernel.ctas_per_sm} CTAs an SM" if kernel.threads else ""  # a host candidate's launch is its own
        print(
            f"  {kernel.entry}: {kernel.registers} registers, {kernel.spill_store_bytes} bytes spilled, "
            f"{smem_bytes} bytes of shared memory{resident}"
        )


def print_times(results: Sequence[FileResult], as_json: bool) -> None:
    if as_json:
        print(f"[{', '.join(result.model_dump_json() for result in results)}]")
        return
    for result in results:
        print(f"{result.file}: {verdict(result.evaluation)}{mark_of(result)}")
        if isinstance(result.evaluation, Measured):
            print("\n".join(speedup_lines(result.evaluation)))


def mark_of(result: FileResult) -> str:
    """What stands behind a verdict that proves less than it says."""
    return f" ({result.unproven})" if result.unproven else ""


def verdict(evaluation: Evaluation) -> str:
    if isinstance(evaluation, Measured):
        return f"verified, {median_us(evaluation.timing):.2f} us measured"
    if isinstance(evaluation, Unmeasured):
        return f"{'compiles, ' if evaluation.verified_by == 'nothing' else ''}{evaluation.headline}"
    return evaluation.headline
