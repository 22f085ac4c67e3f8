"""The answer of `profile` on stdout: time, bottlenecks with their evidence, counters, and differences of two files."""

from collections.abc import Iterator

from cudal2_agent.agent.cli.files import FileComparison, ProfiledFile
from cudal2_agent.agent.cli.render.file_answer import verdict
from cudal2_agent.contract.records.diagnosis import Diagnosis
from cudal2_agent.contract.records.profile import LaunchProfile, Profile
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.sandbox.profiling.metric_set import MetricSet, load_metric_set

_NO_COUNTERS = "no counters were read"
_BASES = {
    "static": f"static: from the compiled code; {_NO_COUNTERS}",
    "timed": f"timed: from the compiled code and the measured time; {_NO_COUNTERS}",
}


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
