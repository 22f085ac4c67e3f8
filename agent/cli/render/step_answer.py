"""One step of a run in full: what wrote it, its evaluation, and why it is fast or slow."""

from cudal2_agent.agent.cli.render.run_answer import speedup_lines, witness_lines
from cudal2_agent.agent.report.one_line import result_of
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.trajectory import Step


def step_lines(step: Step, *, source: bool = False) -> list[str]:
    """The lines for a terminal. `source`: the candidate's source follows."""
    return [*_head(step), *_origin(step), *_result(step), *_reasons(step), *(["", step.candidate.source] if source else [])]


def _head(step: Step) -> list[str]:
    return [
        f"step: {step.index} of run {step.run_id}, round {step.round}, {step.created_at.isoformat(timespec='seconds')}",
        f"candidate: {step.candidate.id}, {step.candidate.label}",
        f"observation: {step.observation_id}",
    ]


def _origin(step: Step) -> list[str]:
    origin = step.candidate.origin
    listed = {"parents": origin.parents, "chunks": origin.chunk_ids, "exemplars": origin.exemplar_ids}
    lines = [f"policy: {origin.policy}" + (f", prompt {origin.prompt_hash}" if origin.prompt_hash else "")]
    lines += [f"{name}: {', '.join(ids)}" for name, ids in listed.items() if ids]
    return lines + ([f"note: {' '.join(origin.note.split())}"] if origin.note else [])


def _result(step: Step) -> list[str]:
    evaluation = step.evaluation
    lines = [f"status: {evaluation.status}", f"result: {result_of(evaluation)}"]
    lines.append(f"reward: {step.reward:+.4f}" if step.reward is not None else "reward: none")
    if isinstance(evaluation, Measured):
        lines += [f"environment: {evaluation.environment.key}", *speedup_lines(evaluation), *witness_lines(step)]
        lines += [f"note: {note}" for note in evaluation.notes]
    for test in evaluation.tests:
        said = f": {' '.join(test.message.split())}" if test.message else ""
        lines.append(f"test: {test.tier}/{test.name} {'passed' if test.passed else 'failed'}{said}")
    return lines


def _reasons(step: Step) -> list[str]:
    findings = step.diagnosis.findings if step.diagnosis else ()
    lines = [f"diagnosis: {one.bottleneck}: {one.evidence} ({one.remedy})" for one in findings]
    took = ", ".join(f"{stage} {seconds:.3g}" for stage, seconds in step.seconds.items())
    return lines + ([f"seconds: {took}"] if took else [])
