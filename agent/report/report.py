"""The report of a run in Markdown: the result, the comparison with the baselines, the attempts, and what was not done."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from cudal2.modules.stored_module import PROBLEM
from cudal2_agent.agent.observe.ranking import rank
from cudal2_agent.agent.report.attribution import improvements, sightings
from cudal2_agent.agent.report.keeping import advice
from cudal2_agent.agent.report.lead import lead_of
from cudal2_agent.agent.report.measured_section import baselines_of, measured_section, table
from cudal2_agent.agent.report.one_line import witness_of
from cudal2_agent.agent.report.plan_picture import plan_of_best, step_rows, times_us
from cudal2_agent.agent.report.replies import sum_up
from cudal2_agent.agent.report.why import replies_lines, why_section
from cudal2_agent.agent.run.result import RunResult
from cudal2_agent.agent.tasks.named_problems import NAME
from cudal2_agent.contract.records.candidate import Origin
from cudal2_agent.contract.records.evaluation import (
    NOT_COVERED,
    NOT_FITTED,
    Measured,
    Prediction,
    TestResult,
    Unmeasured,
    ran_in_part,
)
from cudal2_agent.contract.records.exchange import Exchange
from cudal2_agent.contract.records.inspection import Inspection
from cudal2_agent.contract.records.knowledge import Hit
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import AccumulatorType, ElementType, GemmTask, Layout, TimingMode
from cudal2_agent.contract.records.trajectory import Observation, RunRecord, Step
from cudal2_agent.contract.reward.reward import confirmed
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.speedup import median_us
from cudal2_agent.contract.settings.run_settings import REMOTE_DEVICES

OPCODES = 10
NO_KERNEL = "No candidate passed; there is no kernel to show."
_VERSUS = {"gemm": "over AutoTuning", "module": "over PyTorch's fastest"}
# What 'in part' means, wherever it is said of a proof.
IN_PART = "some tests ran a part of the grid only, or a smaller size; the result lists what was run and compared"


def render_report(outcome: RunResult, out: Path) -> str:
    """The whole report. `out`: the folder of its files, for the command lines in it."""
    run = outcome.run
    sections = [
        f"# {'GEMM' if isinstance(run.task, GemmTask) else 'Module'} {run.task.shape}",
        _verdict(outcome),
        _best(outcome),
        _plan(outcome),
        _diagnosis(outcome.best),
        _looked_up(outcome.looked_up),
        _why(outcome),
        _replies(outcome.exchanges, outcome.observations),
        _attempts(outcome),
        _refused(outcome),
        "![time by step](progress.svg)",
        _not_done(outcome),
        _again(run, outcome.best, out),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _asked(task: Task) -> str:
    if isinstance(task, GemmTask):
        return f"{task.element} elements, {task.accumulate} accumulation, layout {task.layout}{_end(task)}"
    sizes = "".join(f", {name} {size}" for name, size in task.dims.items())
    return f"{task.arithmetic} arithmetic{', training' if task.training else ''}{sizes}"


def _end(task: GemmTask) -> str:
    if task.gated:
        return f", gated: {task.formula}"
    return f"{', a bias' if task.bias else ''}{f', then {task.activation}' if task.activation else ''}"


def _verdict(outcome: RunResult) -> str:
    run = outcome.run
    task = run.task
    lines = [
        f"- task: {_asked(task)}, {task.arch}",
        f"- run: `{run.run_id}`, {run.status}: {outcome.reason}",
        f"- policy: {run.policy}, seed {run.seed}; {len(outcome.steps)} steps in {outcome.spent_s:.0f} s",
        f"- chip: {run.chip.name} ({run.chip.sms} SMs){_where(run)}; roofline {_roofline_us(run):.2f} us",
    ]
    return "\n".join(lines)


def _best(outcome: RunResult) -> str:
    if outcome.best is None:
        return f"## Result\n\n**{NO_KERNEL}**"
    evaluation, label = outcome.best.evaluation, outcome.best.candidate.label
    head = f"## Result\n\nBest candidate: `{outcome.best.candidate.id}`, {label} (`kernel.cu`)."
    if isinstance(evaluation, Measured):
        if said := advice(outcome.run.task, outcome.best):
            head = f"{head}\n\n**{said}**"
        return f"{head}\n\n{measured_section(evaluation, outcome.run)}{_witness(evaluation, outcome.best.candidate.origin)}"
    assert isinstance(evaluation, Unmeasured)
    prediction, known = evaluation.prediction, knowledge_of(evaluation)
    time = f"Predicted: {prediction.predicted_us:.2f} us (by {prediction.model}){_terms(prediction)}."
    if prediction.is_floor:
        time = f"The roofline is {prediction.floor_us:.2f} us."
    lead = lead_of(outcome.steps, outcome.run.task, outcome.run.chip)
    return f"{head}\n\n**{known}** {time}{f' {lead.sentence}' if lead and lead.sentence else ''}{_tests(evaluation)}"


def _terms(prediction: Prediction) -> str:
    said = ", ".join(f"{name} {term_us:.2f}" for name, term_us in prediction.largest_terms)
    parts = "; ".join(f"{launch.entry} {launch.said}" for launch in prediction.launches)
    alone = f"; each resource alone would need, in us: {said}" if said else ""
    return f"{alone}; its parts, one after another: {parts}" if parts else alone


def _witness(measured: Measured, origin: Origin) -> str:
    """The second witness's verdict on the best kernel, where one was needed, and what it covered."""
    said = witness_of(measured, origin)
    tests = measured.witness.tests if measured.witness else ()
    return "".join([f"\n\nSecond witness: {said}.", *_covered(tests)]) if said else ""


def _covered(tests: Sequence[TestResult]) -> list[str]:
    """What the emulator's tests ran and compared, a line each."""
    ran = [test for test in tests if test.tier == "emulator" and test.name != NOT_COVERED and test.message]
    return [f"\n- {test.message}" for test in ran]


def _not_covered(tests: Sequence[TestResult]) -> list[str]:
    """What the emulator's tests did not run, a line each; empty where every test ran the whole task."""
    if not ran_in_part(tests):
        return []
    return [IN_PART, *(test.message for test in tests if test.name == NOT_COVERED)]


def knowledge_of(evaluation: Unmeasured) -> str:
    """One sentence on a kernel that was not timed."""
    if evaluation.verified_by == "nothing":
        known = f"The kernel was not executed{f' ({evaluation.reason})' if evaluation.reason else ''}"
    else:
        backend = "emulator" if evaluation.verified_by == "emulator" else "GPU"
        known = f"The {backend} executed the kernel and found it right{', some tests in part' if evaluation.in_part else ''}"
    if evaluation.prediction.is_floor:
        return f"{known}; its time is neither measured nor predicted."
    basis = ", from rates that nobody fitted to this chip" if evaluation.prediction.model.endswith(NOT_FITTED) else ""
    return f"{known}; its time is predicted, not measured{basis}."


def _tests(evaluation: Unmeasured) -> str:
    """The passed tests of a kernel, and what they covered."""
    passed = [test for test in evaluation.tests if test.name != NOT_COVERED]
    if not passed:
        return ""
    return "".join([f"\n\n{len(passed)} tests passed:", *_covered(passed)])


def _plan(outcome: RunResult) -> str:
    """The steps of a module's best plan; empty for a product, and where there is no plan."""
    run, best = outcome.run, outcome.best
    plan = plan_of_best(best, run)
    if plan is None or not isinstance(run.task, ModuleTask):
        return ""
    rows = step_rows(plan, run.task, best)
    timed = "" if times_us(best, plan) else " No step was timed by itself."
    said = f"Bytes are those of the buffers that a step names.{timed}"
    head = ("step", "what runs", "buffers", "bytes", "time alone, us")
    return f"## The plan\n\n![kernels and library calls](plan.svg)\n\n{said}\n\n" + table(head, rows)


def _diagnosis(best: Step | None) -> str:
    if best is None or best.diagnosis is None:
        return ""
    if not best.diagnosis.findings:
        return (
            f"## Diagnosis ({best.diagnosis.basis})\n\nNo rule finds a bottleneck. {_instructions(best.evaluation.inspection)}"
        )
    rows = [(f.bottleneck, f.evidence, f.remedy) for f in best.diagnosis.findings]
    return f"## Diagnosis ({best.diagnosis.basis})\n\n" + table(("bottleneck", "evidence", "what usually helps"), rows)


def _instructions(inspection: Inspection | None) -> str:
    """The most frequent instructions of a kernel."""
    counted = sorted(inspection.opcodes.items(), key=lambda pair: -pair[1])[:OPCODES] if inspection else []
    return f"Most frequent instructions: {', '.join(f'{count} {opcode}' for opcode, count in counted)}." if counted else ""


def _looked_up(hits: Sequence[Hit]) -> str:
    """The hits that the best candidate's policy was shown; empty where there were none."""
    rows = [
        (hit.chunk.release, f"{hit.chunk.path}:{hit.chunk.start_line}-{hit.chunk.end_line}", hit.chunk.symbol) for hit in hits
    ]
    return "## What was looked up\n\n" + table(("release", "lines", "what"), rows) if rows else ""


def _why(outcome: RunResult) -> str:
    better = improvements(outcome.steps, outcome.observations, outcome.run.task, outcome.run.chip)
    return why_section(better, sightings(outcome.steps, outcome.observations, better))


def _replies(exchanges: Sequence[Exchange], observations: Mapping[str, Observation]) -> str:
    """The requests to a chat server and their results; empty where none was asked."""
    replies = sum_up(exchanges, observations)
    if replies is None:
        return ""
    asked = replies_lines(replies.model_copy(update={"dropped": {}}))
    rows = [(str(count), reason) for reason, count in replies.dropped.items()]
    dropped = "\n\n" + table(("dropped", "why no candidate came of it"), rows) if rows else ""
    return "## Language model\n\n" + "\n".join(f"- {line}" for line in asked) + dropped


def _attempts(outcome: RunResult) -> str:
    rows = []
    for one in (rank(step, outcome.run.task, outcome.run.chip) for step in outcome.steps):
        step, attempt = one.step, one.attempt
        time = f"{attempt.time_us:.2f}" if attempt.time_us is not None else ""
        if attempt.predicted_us is not None:
            time = f"({attempt.predicted_us:.2f} predicted)" if one.estimated else ""
        speedup = f"{attempt.speedup:.3f}x" if attempt.speedup is not None else ""
        earned = f"{attempt.reward:+.3f}" if attempt.reward is not None else ""
        said = step.evaluation.headline
        if isinstance(step.evaluation, Measured) and (witness := witness_of(step.evaluation, step.candidate.origin)):
            said = f"{said}, {witness}"
        rows.append((str(step.index), step.candidate.label, said, time, speedup, earned))
    head = ("step", "candidate", "status", "time, us", _VERSUS[outcome.run.task.kind], "reward")
    return "## Attempts\n\n" + (table(head, rows) if rows else "None.")


def _refused(outcome: RunResult) -> str:
    """Kernels that a GPU found right and a second witness refused. Their times do not count."""
    rows = [
        (str(step.index), step.candidate.label, f"{median_us(refused.timing):.2f}", wrong.test.name, wrong.test.message)
        for step, wrong, refused in outcome.refusals
    ]
    head = ("step", "candidate", "time on the GPU, us", "failed test", "what the second witness says")
    return "## Refused by the second witness\n\n" + table(head, rows) if rows else ""


def _not_done(outcome: RunResult) -> str:
    """What was not measured, executed or looked up, although a reader may expect it."""
    missing = []
    evaluations = [step.evaluation for step in outcome.steps]
    if all(evaluation.time_us is None for evaluation in evaluations):
        executed = any(evaluation.executed for evaluation in evaluations)
        untimed = "not timed, no baseline measured"
        missing.append(f"nothing was measured: {untimed}" if executed else f"nothing was executed: not verified, {untimed}")
    best = outcome.best
    if best and isinstance(best.evaluation, Measured):
        known = {timing.name for timing in best.evaluation.baselines}
        missing += [f"baseline {name} was not measured" for name in baselines_of(outcome.run.task) if name not in known]
        if not confirmed(best.evaluation, best.candidate.origin):
            said = witness_of(best.evaluation, best.candidate.origin)
            missing.append(f"the best candidate is {said}; its time earns no reward")
    missing += _not_covered(_emulated(best)) if best else []
    if outcome.run.status == "interrupted":
        missing.append(f"the run was interrupted; continue it with `cudal2-agent runs resume {outcome.run.run_id}`")
    if best and not outcome.looked_up:
        why = "" if outcome.run.settings.use_knowledge else " (--no-knowledge)"
        missing.append(f"nothing was looked up in the knowledge base for the best candidate{why}")
    if best and best.profile is None:
        basis = "inspection and times" if best.evaluation.time_us is not None else "inspection"
        missing.append(f"no hardware counters of the best candidate were read; its diagnosis rests on {basis}")
    return "## Not done\n\n" + "\n".join(f"- {line}" for line in missing)


def _emulated(best: Step) -> tuple[TestResult, ...]:
    """The tests that the emulator made of the best candidate, as its only or as its second witness."""
    match best.evaluation:
        case Measured(witness=witness):
            return witness.tests if witness else ()
        case _:
            return best.evaluation.tests


def _again(run: RunRecord, best: Step | None, out: Path) -> str:
    lines = [optimize_command(run)]
    if best is not None and isinstance(run.task, GemmTask):
        kernel = shlex.quote(str(out / "kernel.cu"))
        seeds = [test.seed for test in best.evaluation.tests if test.seed is not None]
        seed = f" --seed {seeds[-1]}" if seeds else ""
        lines += [
            f"cudal2-agent verify {kernel} {task_flags(run.task)}{seed}",
            f"cudal2-agent bench {kernel} {task_flags(run.task)}",
        ]
    return "## Again\n\n```\n" + "\n".join(lines) + "\n```"


def optimize_command(run: RunRecord) -> str:
    """The command line that starts this run anew."""
    words = [f"cudal2-agent optimize {task_flags(run.task)}", f"--policy {shlex.quote(run.policy)}", f"--seed {run.seed}"]
    words += [f"--budget {run.settings.budget}", f"--minutes {run.settings.minutes}"]
    words += [] if run.settings.use_knowledge else ["--no-knowledge"]
    words += ["--no-profile"] if run.settings.profile == "off" else []
    chat = {"--model": run.settings.chat.model, "--base-url": run.settings.chat.base_url}
    words += [f"{flag} {shlex.quote(value)}" for flag, value in chat.items() if value]
    return " ".join(words)


def task_flags(task: Task) -> str:
    """The flags of a task. Defaults are left out, except the architecture."""
    if isinstance(task, ModuleTask):
        return _module_flags(task)
    flags = [f"--shape {task.shape}", f"--arch {task.arch}"]
    if task.accumulate is not AccumulatorType.F32:
        flags.append(f"--accumulate {task.accumulate}")
    if task.element is not ElementType.F16:
        flags.append(f"--element {task.element}")
    if task.layout is not Layout.NN:
        flags.append(f"--layout {task.layout}")
    if task.bias:
        flags.append("--bias")
    if task.activation is not None:
        flags.append(f"--activation {task.activation}")
    if task.gated:
        flags.append("--gated")
    if task.mode is not TimingMode.OFFLINE:
        flags.append(f"--mode {task.mode}")
    return " ".join(flags)


def _module_flags(task: ModuleTask) -> str:
    """A problem without a name that leads to its file is named by the file that its result holds."""
    named = NAME.fullmatch(task.name) is not None
    flags = [f"--task {shlex.quote(task.name)}" if named else f"--problem {PROBLEM}"]
    flags += [f"--arch {task.arch}", f"--arithmetic {task.arithmetic}"]
    if named and task.dims:
        flags.append("--dims " + ",".join(f"{name}={size}" for name, size in task.dims.items()))
    flags += ["--training"] if task.training else []
    return " ".join(flags + ([f"--mode {task.mode}"] if task.mode is not TimingMode.OFFLINE else []))


def _where(run: RunRecord) -> str:
    """The device, where it is on another machine."""
    device = run.settings.device
    return f" of `{device.replace('`', chr(39))}`" if device.startswith(REMOTE_DEVICES) else ""


def _roofline_us(run: RunRecord) -> float:
    return roofline_us(run.task, run.chip)
