"""`cudal2-agent trajectories import` and `merge`."""

import json
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.contract.base import Record

IMPORT_EXAMPLE = "\b\nExample:\n  cudal2-agent trajectories import sweep-000.sweep.zst sweep-001.sweep.zst"
MERGE_EXAMPLE = "\b\nExample:\n  cudal2-agent trajectories merge other/trajectories.sqlite"


def import_(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Exports as steps or sweep; `-` for stdin.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Add what exports hold to the store. All files are one transaction; what is known already is left as it is."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.events import StoreProgress
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.importing import import_files
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store, Progress() as progress:
        summary = import_files(store, files, lambda _, steps: progress.emit(StoreProgress(stage="import", done=steps)))
    _print(summary, as_json)


def merge(
    source: Annotated[
        str, typer.Argument(metavar="STORE", help="An SQLite file, or the URL of another store.", show_default=False)
    ],
    as_json: AsJson = False,
) -> None:
    """Add the runs of another store, which is only read. Each run is one transaction."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.events import StoreProgress
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.merging import merge_store
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store, Progress() as progress:
        summary = merge_store(
            store, source, lambda _, done, total: progress.emit(StoreProgress(stage="merge", done=done, total=total))
        )
    _print(summary, as_json)


def _print(summary: Record, as_json: bool) -> None:
    counts = summary.model_dump(mode="json")
    told = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
    print(json.dumps(counts) if as_json else f"added: {told}")
