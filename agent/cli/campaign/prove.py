"""`cudal2-agent campaign prove`."""

from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.campaign.run import NAME, CampaignName

EXAMPLE = "\b\nExample:\n  cudal2-agent campaign prove --name main"
REFUTED = 1


def prove(
    name: CampaignName = NAME,
    jobs: Annotated[int, typer.Option("--jobs", help="Compilers at a time.", min=1)] = 2,
    as_json: AsJson = False,
) -> None:
    """Prove the winners of a campaign on the emulator. A refuted winner gives way to the next best kernel of its run.

    Several of these may run at once. Where the store lacks the steps of a run, its winners are written again from their
    schedules.
    """
    from cudal2_agent.agent.campaign.proving import prove_all
    from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
    from cudal2_agent.contract.events import ignore
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.campaign_queue import CampaignQueue
    from cudal2_agent.store.campaign_results import ResultFilter
    from cudal2_agent.store.store import open_store

    settings = load_settings(device="emulator", compile_jobs=jobs)
    refuted = 0
    with open_store(settings.store_url) as store:
        queue = CampaignQueue(store, name)
        queue.record()
        archs = sorted({stored.result.task.arch for stored in queue.results() if stored.result.best})
        for arch in archs:
            wanted = ResultFilter(campaigns=(name,), archs=(arch,))
            with open_sandbox_of(arch, settings, ignore) as sandbox:
                for row in prove_all(store, sandbox, wanted):
                    refuted += "refuted" in row.witness
                    print(
                        row.model_dump_json() if as_json else f"{row.task.shape} {row.task.layout}: {row.witness}", flush=True
                    )
    raise typer.Exit(REFUTED if refuted else 0)
