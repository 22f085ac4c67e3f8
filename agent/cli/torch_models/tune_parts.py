"""Where `tune` searches and measures, from its flags; its searches as a campaign."""

from collections.abc import Mapping
from typing import NamedTuple

from cudal2_agent.agent.campaign.campaign import SEARCHES_PER_GPU, Campaign, CampaignPlan
from cudal2_agent.agent.cli.campaign.run import devices_named
from cudal2_agent.agent.cli.campaign.running import exclusive_among
from cudal2_agent.agent.cli.render.campaign_table import CampaignTable
from cudal2_agent.agent.library.advise.known_kernels import Target
from cudal2_agent.agent.model_tuning.tune_records import WAYS, Way
from cudal2_agent.agent.model_tuning.tuning import Search
from cudal2_agent.agent.run.versions import own_commit
from cudal2_agent.agent.wiring.gpus import visible_gpus
from cudal2_agent.agent.wiring.remote import is_remote, remote_arch
from cudal2_agent.agent.wiring.schedule_prior import is_trained
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.settings.run_settings import TRAINED_BUDGET, UNTRAINED_BUDGET, WORKER_WAIT_S
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store

_SECONDS = 3600
# Of 36 searches on H200s the kernel that screening put first lost 0.05 % to the best of six finalists, the best of three
# nothing; and what a search keeps is raced against PyTorch's own products afterwards.
_BRIEF = {"finalists": 3, "race_baselines": "cublaslt"}
_JOBS_PER_PROVER = 4  # while searches build


class TunePlace(NamedTuple):
    """`devices`: that search. `measures`: whether the first GPU of this machine measures, which PyTorch calls `cuda:0`."""

    target: Target
    devices: tuple[str, ...]
    measures: bool


def where(gpus: str, elsewhere: tuple[str, ...], chip: str | None, *, only_plan: bool) -> TunePlace:
    """Raises: UsageError, DeviceUnavailable."""
    if elsewhere:
        return _elsewhere(gpus, elsewhere, chip)
    known = {gpu.index: gpu for gpu in visible_gpus() if gpu.arch is not None}
    if only_plan and (chip is not None or not known):
        if chip is None:
            raise UsageError("there is no GPU here; name one with --chip, like --chip H200")
        return TunePlace(Target(name=chip, arch=_arch_of(chip)), (), measures=False)
    if chip is not None:
        raise UsageError("--chip is for --plan and --device; GPUs of this machine are what they are")
    if not known:
        raise UsageError(
            "there is no GPU for this product here; run `tune` where one is, search elsewhere with --device and --chip, "
            "or see what would be searched with --plan"
        )
    devices = devices_named(gpus)
    chosen, first = known[int(devices[0].partition(":")[2])], known.get(0)
    if first is None or first.chip != chosen.chip:
        raise UsageError(
            f"GPU 0 measures, and is no {chosen.chip}; set CUDA_VISIBLE_DEVICES to the GPUs that --gpus should name"
        )
    return TunePlace(Target(name=chosen.chip, arch=chosen.arch), devices, measures=True)


def _elsewhere(gpus: str, devices: tuple[str, ...], chip: str | None) -> TunePlace:
    if gpus != "all":
        raise UsageError("--device names GPUs elsewhere; leave out --gpus")
    if wrong := [one for one in devices if not is_remote(one)]:
        raise UsageError(f"--device {wrong[0]}: write exec:COMMAND or spool:FOLDER; GPUs of this machine are named by --gpus")
    if chip is None:
        raise UsageError("--device needs --chip, the name of the GPU there, like --chip H200")
    return TunePlace(Target(name=chip, arch=remote_arch(devices[0], WORKER_WAIT_S)), devices, measures=False)


def _arch_of(chip: str) -> Arch | None:
    return next((arch for arch, one in REFERENCE_CHIPS.items() if one.name.casefold() == chip.casefold()), None)


def read_ways(text: str) -> tuple[Way, ...]:
    """Raises: UsageError."""
    named = [part.strip() for part in text.split(",") if part.strip()]
    found = tuple(way for way in WAYS if way in named)
    if not found or len(found) != len(set(named)):
        raise UsageError(f"--ways {text!r}: choose from {', '.join(WAYS)}, with commas")
    return found


def campaign_search(settings: Settings, place: TunePlace) -> Search:
    """Searches as a campaign, whose table is on stderr. A later call of the same name resumes its queue.

    The budget is that of the settings where they name one, else what suits the prior of the chip. Unless they say otherwise,
    three finalists are raced against cuBLASLt's two baselines.
    """
    given = settings.model_copy(update={name: value for name, value in _BRIEF.items() if name not in settings.model_fields_set})

    def search(name: str, wanted: Mapping[GemmTask, float], seconds: float | None) -> None:
        first = next(iter(wanted))
        arch, chip = first.arch, REFERENCE_CHIPS[first.arch].model_copy(update={"name": place.target.name})
        settings = given
        if "budget" not in given.model_fields_set:
            budget = TRAINED_BUDGET if is_trained(given, first, chip) else UNTRAINED_BUDGET
            settings = given.model_copy(update={"budget": budget})
        with open_store(settings.store_url) as store, CampaignTable() as table:
            queue = CampaignQueue(store, name)
            queue.open(settings.recorded())
            queue.add(dict(wanted.items()), settings.seed)
            plan = CampaignPlan(
                name=name,
                settings=settings,
                arch=arch,
                devices=place.devices,
                hours=None if seconds is None else seconds / _SECONDS,
                provers=max(1, settings.compile_jobs // _JOBS_PER_PROVER),
                commit=own_commit(),
                searches_per_gpu=1 if exclusive_among(place.devices) else SEARCHES_PER_GPU,
            )
            Campaign(plan, queue, table).run()

    return search
