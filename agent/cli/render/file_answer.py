"""The answer of `verify` and `bench` on stdout: one verdict per file, with its tests or its times."""

from collections.abc import Sequence

from cudal2_agent.agent.cli.files import FileResult
from cudal2_agent.agent.cli.render.run_answer import speedup_lines
from cudal2_agent.contract.records.evaluation import NOT_COVERED, Evaluation, Measured, Prediction, Unmeasured

SHOWN_TERMS = 4


def print_verdict(result: FileResult, as_json: bool) -> None:
    if as_json:
        print(result.model_dump_json())
        return
    evaluation = result.evaluation
    # The failed test follows in full, so that the headline would repeat it.
    print(f"{result.file}: {'wrong' if evaluation.status == 'wrong' else verdict(evaluation)}")
    for test in evaluation.tests:
        mark = "not run" if test.name == NOT_COVERED else "passed" if test.passed else "FAILED"
        again = "" if test.passed or test.seed is None else f" (again with --seed {test.seed})"
        print(f"  {mark:<7}  {test.tier}/{test.name}  {test.message}{again}".rstrip())
    if isinstance(evaluation, Unmeasured) and not evaluation.prediction.is_floor:
        print(f"  {_predicted(evaluation.prediction)}")
    for kernel in evaluation.inspection.kernels if evaluation.inspection else ():
        smem_bytes = kernel.static_smem_bytes + kernel.dynamic_smem_bytes
        print(
            f"  {kernel.entry}: {kernel.registers} registers, {kernel.spill_store_bytes} bytes spilled, "
            f"{smem_bytes} bytes of shared memory, {kernel.ctas_per_sm} CTAs per SM"
        )


def _predicted(prediction: Prediction) -> str:
    """The predicted time, with the resources that would take longest alone."""
    largest = sorted(prediction.terms.items(), key=lambda term: -term[1])[:SHOWN_TERMS]
    alone = f"; alone: {', '.join(f'{name} {time_us:.2f}' for name, time_us in largest)}" if largest else ""
    factor = f"; fitted correction {prediction.correction:.2f}" if prediction.correction != 1.0 else ""
    return f"predicted: {prediction.predicted_us:.2f} us ({prediction.model}){alone}{factor}"


def print_times(results: Sequence[FileResult], as_json: bool) -> None:
    if as_json:
        print(f"[{', '.join(result.model_dump_json() for result in results)}]")
        return
    for result in results:
        mark = f" ({result.unproven})" if result.unproven else ""
        print(f"{result.file}: {verdict(result.evaluation)}{mark}")
        if isinstance(result.evaluation, Measured):
            print("\n".join(speedup_lines(result.evaluation)))


def verdict(evaluation: Evaluation) -> str:
    if evaluation.time_us is not None:
        return f"verified, {evaluation.time_us:.2f} us measured"
    built_only = not (evaluation.executed or evaluation.failed)
    return f"{'compiles, ' if built_only else ''}{evaluation.headline}"
