"""Runs a campaign from the command line: fills the queue, shows the table, and prints what was reached."""

from collections.abc import Mapping, Sequence

from cudal2_agent.agent.campaign.campaign import SEARCHES_PER_GPU, Campaign, CampaignPlan
from cudal2_agent.agent.cli.render.campaign_table import CampaignTable, print_campaign
from cudal2_agent.agent.wiring.gpus import visible_gpus
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.module_campaign import AskedModule, CampaignTask
from cudal2_agent.contract.records.task import Arch
from cudal2_agent.contract.settings.settings import Settings
from cudal2_agent.store.campaign_queue import CampaignQueue
from cudal2_agent.store.store import open_store

INTERRUPTED = 130


def run_campaign(
    *,
    name: str,
    tasks: Mapping[CampaignTask, float],
    settings: Settings,
    arch: Arch,
    devices: tuple[str, ...],
    ray: str | None,
    hours: float | None,
    provers: int,
    commit: str,
    notices: Sequence[str],
    as_json: bool,
) -> int:
    """The exit code: 0 at the end of the queue or of the time, 130 after an interrupt. Raises: UsageError, WorkerError."""
    with open_store(settings.store_url) as store:
        queue = CampaignQueue(store, name)
        if tasks:
            queue.open(settings.recorded())
            if old := queue.replace(task for task in tasks if isinstance(task, AskedModule)):
                notices = [*notices, f"{old} files have changed since they were asked, and are asked as they are now"]
            queue.add(tasks, settings.seed)
        queue.record()
        if not queue.counts().total:
            raise UsageError(f"campaign {name!r} has nothing yet; name shapes with --shapes, or modules with --problems")
        alone = exclusive_among(devices)
        plan = CampaignPlan(
            name=name,
            settings=settings,
            arch=arch,
            devices=devices,
            hours=hours,
            provers=provers,
            commit=commit,
            searches_per_gpu=1 if alone else SEARCHES_PER_GPU,
        )
        interrupted = False
        with CampaignTable() as table:
            for notice in notices:
                table.note(notice)
            if alone:
                table.note(f"{', '.join(alone)}: exclusive-process mode, so one search per GPU at a time; it takes longer")
            try:
                if ray is not None:
                    from cudal2_agent.agent.campaign.ray_cluster import run_on_ray

                    run_on_ray(plan, queue, ray, table)
                else:
                    Campaign(plan, queue, table).run()
            except KeyboardInterrupt:
                interrupted = True
                table.note(f"interrupted; go on with: cudal2-agent campaign run --name {name}")
        print_campaign(queue, as_json=as_json)
        return INTERRUPTED if interrupted else 0


def exclusive_among(devices: tuple[str, ...]) -> list[str]:
    """The devices in exclusive-process mode, which one search at a time may use."""
    return [f"cuda:{gpu.index}" for gpu in visible_gpus() if gpu.exclusive and f"cuda:{gpu.index}" in devices]
