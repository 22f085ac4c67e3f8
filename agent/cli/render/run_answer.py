"""The answer of a run on stdout, a few lines of text or one JSON object; and one step in full."""

import json
from pathlib import Path

from cudal2_agent.agent.report.keeping import advice, keeps_pytorch
from cudal2_agent.agent.report.lead import Lead, lead_of
from cudal2_agent.agent.report.module_folder import MODULE
from cudal2_agent.agent.report.one_line import result_of, witness_of
from cudal2_agent.agent.report.report import NO_KERNEL, knowledge_of
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.wiring.policy import SEARCHES
from cudal2_agent.contract.records.evaluation import Measured, Unmeasured
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.reward import confirmed
from cudal2_agent.contract.reward.speedup import median_us, speedup_over


def print_outcome(outcome: RunResult, folder: Path, as_json: bool) -> None:
    print(outcome_text(outcome, folder, as_json))


def outcome_text(outcome: RunResult, folder: Path, as_json: bool) -> str:
    return json.dumps(outcome_json(outcome, folder)) if as_json else "\n".join(_lines(outcome, folder))


def outcome_json(outcome: RunResult, folder: Path) -> dict[str, object]:
    """The run and its best step. `measured`: whether the best time is measured and not predicted."""
    best = outcome.best
    return {
        "run_id": outcome.run.run_id,
        "status": outcome.run.status,
        "reason": outcome.reason,
        "task": outcome.run.task.model_dump(mode="json"),
        "chip": outcome.run.chip.name,
        "steps": len(outcome.steps),
        "seconds": round(outcome.spent_s, 3),
        "out": str(folder),
        "measured": best is not None and best.evaluation.time_us is not None,
        "best": best_json(best) if best else None,
        **_module_json(outcome, folder),
        **lead_json(lead_of(outcome.steps, outcome.run.task, outcome.run.chip)),
        "refused": [
            {"candidate_id": step.candidate.id, "time_us": median_us(refused.timing), "message": wrong.test.message}
            for step, wrong, refused in outcome.refusals
        ],
    }


def lead_json(lead: Lead | None) -> dict[str, object]:
    """What the best candidate was chosen by, and the ids of those that tie with it."""
    tied = lead.tied if lead else ()
    return {"ranked_by": lead.ranked_by if lead else None, "tied": [step.candidate.id for step in tied]}


def best_json(step: Step) -> dict[str, object]:
    """A step's candidate and evaluation.

    A measured time is `time_us`, a modelled one `predicted_us`. Where no model knows the candidate, `floor_us` is the roofline.
    """
    evaluation = step.evaluation
    answer: dict[str, object] = {
        "candidate_id": step.candidate.id,
        "label": step.candidate.label,
        "status": evaluation.status,
        "reward": step.reward,
    }
    if isinstance(evaluation, Unmeasured):
        answer["verified_by"] = evaluation.verified_by
        answer["floor_us" if evaluation.prediction.is_floor else "predicted_us"] = evaluation.prediction.predicted_us
    if isinstance(evaluation, Measured):
        speedups = [speedup_over(evaluation, timing.name) for timing in evaluation.baselines]
        answer["time_us"] = median_us(evaluation.timing)
        answer["witness"] = evaluation.witness.model_dump(mode="json", exclude={"tests"}) if evaluation.witness else None
        answer["unsteadiness"] = round(evaluation.timing.unsteadiness, 4)
        answer["notes"] = list(evaluation.remarks)
        answer["confirmed"] = confirmed(evaluation, step.candidate.origin)
        answer["speedups"] = [speedup.model_dump() for speedup in speedups if speedup]
    return answer


def _lines(outcome: RunResult, folder: Path) -> list[str]:
    kernel = [f"kernel: {folder / 'kernel.cu'}"] if outcome.best else []
    lead = lead_of(outcome.steps, outcome.run.task, outcome.run.chip)
    task, module = outcome.run.task, []
    if isinstance(task, ModuleTask):
        said = advice(task, outcome.best)
        served = [f"module: {folder / MODULE}"] if outcome.best and (folder / MODULE).is_file() else []
        module = [*([said] if said else served), *unsound(task)]
    notes = *_no_family(outcome), *_other_author(outcome)
    return [*kernel, *best_lines(outcome.best, lead), *module, f"report: {folder / 'report.md'}", *notes]


def _no_family(outcome: RunResult) -> list[str]:
    """Why nothing of a gated task was proposed."""
    task = outcome.run.task
    if outcome.steps or not isinstance(task, GemmTask) or not task.gated:
        return []
    return ["note: the search has gated kernels for --layout tn on sm_90a, where N and K are multiples of 8"]


def _other_author(outcome: RunResult) -> list[str]:
    """What a language model would add; empty where the settings name one, or the run was sampled from one."""
    settings = outcome.run.settings
    if settings.chat.model or outcome.run.policy not in SEARCHES:
        return []
    return ["note: no language model took part; one writes what the search has no family for: --model NAME --base-url URL"]


def _module_json(outcome: RunResult, folder: Path) -> dict[str, object]:
    """Of a module: whether a program should keep PyTorch's, and the file to import otherwise."""
    if not isinstance(outcome.run.task, ModuleTask):
        return {}
    keep = keeps_pytorch(outcome.run.task, outcome.best)
    there = outcome.best is not None and not keep and (folder / MODULE).is_file()
    return {"keep_pytorch": keep, "module": str(folder / MODULE) if there else None}


def unsound(task: Task) -> list[str]:
    """Why a task's times earn no reward, or that it is not known whether they should; empty where they may."""
    if not isinstance(task, ModuleTask) or task.soundness is None or task.soundness.status == "sound":
        return []
    if task.is_unsound:
        return [f"unsound task, no reward: {task.soundness.reason}"]
    return [f"whether the tests refuse wrong programs is not known: {task.soundness.reason}"]


def best_lines(best: Step | None, lead: Lead | None = None) -> list[str]:
    """The leading candidate and its time, measured or predicted. `lead`: how it was chosen."""
    if best is None:
        return [NO_KERNEL]
    head = f"{'schedule' if best.candidate.origin.schedule else 'candidate'}: {best.candidate.label}"
    if isinstance(best.evaluation, Measured):
        time = f"time: {median_us(best.evaluation.timing):.2f} us, measured"
        notes = [f"note: {note}" for note in best.evaluation.remarks]
        return [head, time, *speedup_lines(best.evaluation), *witness_lines(best), *notes]
    assert isinstance(best.evaluation, Unmeasured)
    prediction, known = best.evaluation.prediction, knowledge_of(best.evaluation)
    time = f"{prediction.predicted_us:.2f} us, predicted"
    if prediction.is_floor:
        time = f"not known; the roofline is {prediction.floor_us:.2f} us"
    return [head, f"time: {time}", known, *([lead.sentence] if lead and lead.sentence else [])]


def witness_lines(step: Step) -> list[str]:
    """The second witness's verdict on a measured kernel, where one was needed. Without it there is no reward."""
    assert isinstance(step.evaluation, Measured)
    said = witness_of(step.evaluation, step.candidate.origin)
    withheld = "" if confirmed(step.evaluation, step.candidate.origin) else "; its time earns no reward"
    return [f"witness: {said}{withheld}"] if said else []


def speedup_lines(measured: Measured) -> list[str]:
    """One line per baseline: its time, the speedup and the speedup's 95 % interval."""
    lines = []
    for timing in measured.baselines:
        if speedup := speedup_over(measured, timing.name):
            interval = f"[{speedup.low:.3f}, {speedup.high:.3f}]"
            lines.append(f"  {timing.name:<20} {median_us(timing):>9.2f} us   {speedup.ratio:.3f}x {interval}")
    return lines


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
        lines += [f"note: {note}" for note in evaluation.remarks]
    for test in evaluation.tests:
        said = f": {' '.join(test.message.split())}" if test.message else ""
        lines.append(f"test: {test.tier}/{test.name} {'passed' if test.passed else 'failed'}{said}")
    return lines


def _reasons(step: Step) -> list[str]:
    findings = step.diagnosis.findings if step.diagnosis else ()
    lines = [f"diagnosis: {one.bottleneck}: {one.evidence} ({one.remedy})" for one in findings]
    took = ", ".join(f"{stage} {seconds:.3g}" for stage, seconds in step.seconds.items())
    return lines + ([f"seconds: {took}"] if took else [])
