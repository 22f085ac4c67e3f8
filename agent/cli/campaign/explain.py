"""`cudal2-agent campaign explain`."""

from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.campaign.run import NAME, CampaignName, CountedEnvironment

EXAMPLE = "\b\nExample:\n  cudal2-agent campaign explain --name main --worst 10"
NOT_ALL = 1


def explain(
    name: CampaignName = NAME,
    worst: Annotated[int, typer.Option("--worst", help="Slowest shapes of each mode and layout.", min=1)] = 10,
    mode: Annotated[str | None, typer.Option("--mode", help="offline or server; default: both.", show_default=False)] = None,
    environment: CountedEnvironment = None,
    as_json: AsJson = False,
) -> None:
    """Profile the slowest winners and cuBLASLt's kernels with Nsight Compute, and record with each row what bounds it.

    It needs a GPU, ncu, and the steps of the winners in the store (`trajectories import`). Rows that are explained stay.
    """
    from cudal2_agent.agent.campaign.report.explaining import explain_rows, worst_of
    from cudal2_agent.agent.campaign.report.reasons import reason_of
    from cudal2_agent.agent.cli.arguments import choice
    from cudal2_agent.agent.wiring.sandbox import open_sandbox_of
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.events import ignore
    from cudal2_agent.contract.records.task import TimingMode
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.campaign_results import ResultFilter, read_results
    from cudal2_agent.store.store import open_store

    settings = load_settings()
    modes = (choice("--mode", TimingMode, mode),) if mode else ()
    failed = False
    with open_store(settings.store_url) as store:
        with store.reading() as (connection, _):
            stored = read_results(connection, ResultFilter(campaigns=(name,), modes=modes))
        wanted = worst_of(stored, worst, environment)
        if not wanted:
            raise UsageError(f"campaign {name!r} has no result to explain; see `cudal2-agent campaign results`")
        for arch in sorted({one.result.task.arch for one in wanted}):
            with open_sandbox_of(arch, settings, ignore) as sandbox:
                for row, why_not in explain_rows(store, sandbox, [one for one in wanted if one.result.task.arch is arch]):
                    failed = failed or bool(why_not)
                    task = row.task
                    told = f"not explained: {why_not}" if why_not else reason_of(row)
                    shown = row.model_dump_json() if as_json else f"{task.shape} {task.layout} {task.mode}: {told}"
                    print(shown, flush=True)
    raise typer.Exit(NOT_ALL if failed else 0)
