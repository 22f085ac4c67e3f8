"""Opens the policy of the settings: schedule, chat, portfolio or lm; for a module fusion, fusion-algebra, chat or portfolio."""

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from cudal2_agent.agent.observe.near_entries import near_entries
from cudal2_agent.agent.wiring.schedule_prior import open_prior
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice
from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.protocols import Policy, TrajectoryStore, Workbench
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.evaluation import AUTOTUNED
from cudal2_agent.contract.records.library import LibraryEntry
from cudal2_agent.contract.records.module_task import ModuleTask, Task
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Precedent
from cudal2_agent.contract.settings.options import ChatOptions
from cudal2_agent.contract.settings.run_settings import HANDED_IN
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.policies.chat.account import Account
from cudal2_agent.policies.chat.policy import ChatPolicy
from cudal2_agent.policies.chat.prompts.schedules import WINNERS, ScheduleAdvice
from cudal2_agent.policies.chat.server.chat_server import ChatServer
from cudal2_agent.policies.chat.server.connection import open_server
from cudal2_agent.policies.chat.server.key import checked_base_url, resolve_key
from cudal2_agent.policies.chat.server.replay import RecordedFirst, ReplayServer
from cudal2_agent.policies.fusion.fused_source import ALGEBRA, FAMILY
from cudal2_agent.policies.fusion.policy import FusionPolicy
from cudal2_agent.policies.lm.needs import SAMPLING, require
from cudal2_agent.policies.portfolio.policy import Portfolio
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import Precedents, SchedulePolicy
from cudal2_agent.sandbox.building.headers import OWN_ROOT
from cudal2_agent.store.precedents import StoredPrecedents
from cudal2_agent.store.store import RunExchanges, Store

AUTO = "auto"
POLICIES = ("schedule", "chat", "portfolio", "lm")
SEARCHES = ("schedule", FAMILY, ALGEBRA)  # that write without a language model
MODULE_POLICIES = (FAMILY, ALGEBRA, "chat", "portfolio")


def with_policy_of(settings: Settings, task: Task, *, may_ask: bool = False) -> Settings:
    """The settings of a run of the task: where no policy is named, the search of the task's kind.

    `may_ask`: whether a model that the settings name shares the rounds with it.
    """
    if settings.policy != AUTO:
        return settings
    search = FAMILY if isinstance(task, ModuleTask) else "schedule"
    return settings.model_copy(update={"policy": "portfolio" if may_ask and settings.chat.model else search})


def chat_limits(settings: Settings) -> str:
    """What a chat server may cost a run, in a line; empty where none is asked. The settings' policy is resolved."""
    options = settings.chat
    if settings.policy not in ("chat", "portfolio") or settings.replay is not None:
        return ""
    money = "no cap on money" if options.money is None else f"{options.money:g} of money"
    waiting = "" if options.minutes is None else f", {options.minutes:g} minutes of waiting"
    return f"{options.model} may use up to {options.tokens:,} tokens, {money}{waiting}"


@contextmanager
def open_policy(
    task: Task, settings: Settings, store: Store, run_id: str, emit: Emit, workbench: Workbench | None = None
) -> Iterator[Policy]:
    """The policy of a run. No request is sent yet. `workbench`: the tools that a model may use; None for none.

    Raises: UsageError for an unknown policy, or for a missing model, key, address, price or run to replay.
    """
    checked_base_url(settings.chat.base_url)  # before the run records it: it may hold a password
    known = MODULE_POLICIES if isinstance(task, ModuleTask) else POLICIES
    if settings.policy not in known:
        raise UsageError(_refusal(settings.policy, task, known))
    if settings.policy == "lm":
        yield _open_lm(settings, emit)
        return
    if settings.policy == "chat":
        with _open_chat(task, settings, store, run_id, emit, workbench) as chat:
            yield chat
        return
    first: Policy = (
        FusionPolicy(algebra=settings.policy == ALGEBRA)
        if isinstance(task, ModuleTask)
        else _open_schedule(task, settings, store)
    )
    if settings.policy != "portfolio":
        yield first
        return
    with _open_chat(task, settings, store, run_id, emit, workbench) as chat:
        yield Portfolio({first.name: first, chat.name: chat}, settings.budget, settings.seed, emit)


def _refusal(policy: str, task: Task, known: Sequence[str]) -> str:
    """Why a task has no such policy, in a line."""
    if policy == HANDED_IN:
        return "kernels of this run are handed in by an agent; continue it with `cudal2-agent mcp --resume RUN`"
    if isinstance(task, ModuleTask) and policy in POLICIES:
        return f"the policy {policy} names schedules of matrix products; for a module choose from {', '.join(known)}"
    if policy in (FAMILY, ALGEBRA):
        return f"the policy {policy} works on modules only; for a matrix product choose from {', '.join(known)}"
    return f"policy {policy!r} is not known; choose from {', '.join(known)}"


def _open_schedule(task: GemmTask, settings: Settings, store: Store) -> SchedulePolicy:
    near = _precedents(settings, store)
    return SchedulePolicy(families(task.arch), settings.seed, precedents=near, prior_of=open_prior(settings))


def _precedents(settings: Settings, store: Store) -> Precedents:
    return partial(StoredPrecedents(store).near, count=settings.precedents)


def _known_schedules(settings: Settings, store: Store) -> Precedents:
    """What a model is told: schedules of the shipped library, then those that led runs of the store."""
    stored = _precedents(settings, store)

    def near(task: GemmTask, chip: Chip) -> list[Precedent]:
        shipped = near_entries(task, chip.name, WINNERS) if settings.precedents else ()
        return [*(_of_entry(one, one.schedule) for one in shipped if one.schedule), *stored(task, chip)]

    return near


def _of_entry(entry: LibraryEntry, schedule: dict[str, ScheduleValue]) -> Precedent:
    """With the ratio of the race that chose it, of plain launches."""
    measured = entry.evaluation
    return Precedent(
        run_id=measured.run_id,
        task=entry.task,
        schedule=schedule,
        speedup=measured.speedup.ratio,
        baseline_us=measured.baselines_us.get(AUTOTUNED),
    )


def _open_lm(settings: Settings, emit: Emit) -> Policy:
    """The model of an adapter in this process: on the GPU of the settings, else on the CPU."""
    if settings.lm is None:
        raise UsageError("the policy lm needs an adapter; train one with `cudal2-agent train lm` and name it with --lm FOLDER")
    require(SAMPLING)
    from cudal2_agent.policies.lm.adapter_folder import open_adapter
    from cudal2_agent.policies.lm.policy import LanguageModelPolicy
    from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler

    device = None if settings.device == "auto" else settings.device if settings.device.startswith("cuda") else "cpu"
    loaded, _ = open_adapter(settings.lm, settings.chat.model or None, device)
    return LanguageModelPolicy(ReplySampler(loaded), emit, settings.seed)


@contextmanager
def _open_chat(
    task: Task, settings: Settings, store: Store, run_id: str, emit: Emit, workbench: Workbench | None
) -> Iterator[ChatPolicy]:
    options = _options_for(task, settings.chat)
    if not options.model:
        raise UsageError("the chat policy needs a model; name it with --model, and a server with --base-url")
    if options.money is not None and not (options.prompt_price or options.reply_price or settings.replay):
        raise UsageError("a cap on money needs prices; set CUDAL2_PROMPT_PRICE and CUDAL2_REPLY_PRICE")
    log = RunExchanges(store, run_id)
    with _open_server(options, settings, store, emit) as server:
        account = Account(options, log.recorded(), replayed=settings.replay is not None)
        asked_once = RecordedFirst(server, log)
        advice = ScheduleAdvice(open_prior(settings), _known_schedules(settings, store))
        headers = primitives()
        yield ChatPolicy(options, asked_once, log, account, emit, settings.seed, headers, workbench, advice=advice)


def _options_for(task: Task, options: ChatOptions) -> ChatOptions:
    """The replies to a module are sources: the families of schedules are of matrix products. Raises: UsageError."""
    if isinstance(task, GemmTask):
        return options
    if options.replies == "schedule":
        raise UsageError("--replies schedule names schedules of matrix products; a module takes any or source")
    return options.model_copy(update={"replies": "source"})


@contextmanager
def _open_server(options: ChatOptions, settings: Settings, store: TrajectoryStore, emit: Emit) -> Iterator[ChatServer]:
    """A server, or a run's recorded replies in its place."""
    if settings.replay is not None:
        replay = ReplayServer(store.exchanges(settings.replay))
        yield replay
        if replay.differed:
            emit(Notice(message=f"{replay.differed} prompts differ from those of run {settings.replay}; its replies were used"))
        if replay.missing:
            emit(Notice(message=f"{replay.missing} prompts have no reply in run {settings.replay}; they gave no candidate"))
        return
    key = resolve_key(
        api_key=settings.api_key,
        api_key_file=settings.api_key_file,
        openai_key=settings.openai_key,
        base_url=settings.chat.base_url,
        emit=emit,
    )
    with closing(open_server(options, key, emit)) as server:
        yield server


def primitives() -> Sequence[tuple[str, str]]:
    """Name and text of the headers that a candidate may include and that a prompt shows."""
    return [(path.relative_to(OWN_ROOT).as_posix(), path.read_text("utf-8")) for path in sorted(OWN_ROOT.rglob("*.cuh"))]
