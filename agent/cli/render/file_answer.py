"""The answers about kernel files: of `verify` and `bench`, a verdict per file with its tests or its times; of `profile`, the
bottlenecks.
"""

from collections.abc import Iterator, Sequence

from cudal2_agent.agent.cli.files import FileComparison, FileResult, ProfiledFile
from cudal2_agent.agent.cli.render.run_answer import speedup_lines
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.evaluation import NOT_COVERED, NOT_PREDICTED, Evaluation, Measured, Prediction, Unmeasured
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.profiling.metric_set import MetricSet, load_metric_set

SHOWN_TERMS = 4
_NO_COUNTERS = "no counters were read"
_BASES = {
    "static": f"static: from the compiled code; {_NO_COUNTERS}",
    "timed": f"timed: from the compiled code and the measured time; {_NO_COUNTERS}",
}


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
        seen = (*test.symptoms.values, *test.symptoms.sources) if test.symptoms else ()
        print("".join(f"           {words}\n" for words in seen), end="")
    if isinstance(evaluation, Unmeasured) and not evaluation.prediction.is_floor:
        print(f"  {_predicted(evaluation.prediction)}")
        for launch in evaluation.prediction.launches:
            print(f"    {launch.entry} {launch.time_us:.2f} us: {launch.said}")
    elif isinstance(evaluation, Unmeasured) and evaluation.prediction.model.startswith(NOT_PREDICTED):
        print(f"  {evaluation.prediction.model}")
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


def print_comparison(comparison: FileComparison, arch: Arch, as_json: bool) -> None:
    print(comparison.model_dump_json() if as_json else "\n".join(lines_of(comparison, load_metric_set(arch))))


def lines_of(comparison: FileComparison, metrics: MetricSet) -> Iterator[str]:
    for each in comparison.files:
        yield from _file_lines(each, metrics)
    if len(comparison.files) == 2 and all(each.profile for each in comparison.files):
        yield f"what changed from {comparison.files[0].file} to {comparison.files[1].file}:"
        for one in comparison.differences:
            yield f"  {one.quantity:<24} {number(one.before)} -> {number(one.after)} {one.unit}  {one.meaning}"
        if not comparison.differences:
            yield "  no counter differs"


def _file_lines(each: ProfiledFile, metrics: MetricSet) -> Iterator[str]:
    diagnosis = each.diagnosis
    if diagnosis is None:
        yield f"{each.file}: {verdict(each.evaluation)}"
        yield "  not profiled: counters of a wrong kernel say nothing"
        return
    fraction = diagnosis.roofline_fraction
    share = f", {fraction:.0%} of the roofline" if fraction is not None else ""
    yield f"{each.file}: {verdict(each.evaluation)}{share}"
    yield from _diagnosis_lines(diagnosis, each.profile)
    for launch in each.profile.launches if each.profile else ():
        yield from _launch_lines(launch, metrics)


def _diagnosis_lines(diagnosis: Diagnosis, profile: Profile | None) -> Iterator[str]:
    read_by = f"counters: read by {profile.tool} in {profile.seconds:.1f} s" if profile else ""
    yield f"  {_BASES.get(diagnosis.basis, read_by)}"
    for rank, finding in enumerate(diagnosis.findings, start=1):
        yield f"  {rank}. {finding.bottleneck} (weight {finding.weight:.2f})"
        yield f"     evidence: {finding.evidence}"
        yield f"     remedy: {finding.remedy}"
    if not diagnosis.findings:
        yield "  no bottleneck was found"


def _launch_lines(launch: LaunchProfile, metrics: MetricSet) -> Iterator[str]:
    grid, block = ("x".join(map(str, size)) for size in (launch.grid, launch.block))
    yield f"  {launch.entry}, grid {grid}, block {block}"
    for short, spec in metrics.metrics.items():
        if short in launch.metrics:
            yield f"    {short:<24} {number(launch.metrics[short]):>16} {spec.unit:<16} {spec.meaning}"


def number(value: float) -> str:
    """Four significant digits; whole numbers from 1,000 up."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
