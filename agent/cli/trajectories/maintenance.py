"""`cudal2-agent trajectories prune` and `verify`."""

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.trajectories.selecting import filtered, opened

if TYPE_CHECKING:
    from cudal2_agent.store.filters import StepFilter
    from cudal2_agent.store.pruning import Pruned

PRUNE_EXAMPLE = "\b\nExample:\n  cudal2-agent trajectories prune --outcome rejected --until 2026-11-01 --dry-run"
VERIFY_EXAMPLE = "\b\nExample:\n  cudal2-agent trajectories verify"


@filtered
def prune(
    selected: "StepFilter",
    keep_best: Annotated[
        int | None,
        typer.Option("--keep-best", min=0, metavar="N", help="The N best steps of each run stay.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before deleting.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also steps of runs that are running.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Then give the free space back to the disk; this needs the same space once more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the selected steps, runs that have none left, and what nothing else refers to.

    Filters of runs alone delete whole runs. Without a filter, only --compact or --keep-best works.
    """
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.store.filters import ALL_STEPS
    from cudal2_agent.store.pruning import prune as prune_store
    from cudal2_agent.store.statistics import store_bytes

    everything = selected == ALL_STEPS and keep_best is None
    if everything and not compact:
        raise UsageError("nothing is selected; name what to delete by filters or --keep-best, or free space with --compact")
    with opened(selected) as (store, wanted):
        found = None
        if not everything:
            found = prune_store(store, wanted, keep_best=keep_best, force=force, dry_run=True)
            if not dry_run and found.rows and _agreed(found, yes):
                found = prune_store(store, wanted, keep_best=keep_best, force=force)
        if compact and not dry_run:
            store.compact()
        with store.reading() as (connection, _):
            size = store_bytes(connection)
    if as_json:
        counts = found.model_dump() if found else None
        print(json.dumps({"deleted": not dry_run, "rows": counts, "compacted": compact and not dry_run, "store_bytes": size}))
        return
    if found:
        print(f"{'would delete' if dry_run else 'deleted'}: {_told(found)}")
    print(f"the store takes {size / 1e6:,.1f} MB{'' if compact or dry_run else '; --compact gives free space back'}")


def _agreed(found: "Pruned", yes: bool) -> bool:
    """True. Raises: UsageError where the answer is no, or nobody can be asked."""
    from cudal2_agent.contract.errors import UsageError

    if yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError(f"this would delete {_told(found)}; agree with --yes, or look first with --dry-run")
    if not typer.confirm(f"Delete {_told(found)}?", err=True):
        raise UsageError("nothing was deleted")
    return True


def _told(found: "Pruned") -> str:
    return ", ".join(f"{count:,} {name}" for name, count in found.model_dump().items())


def verify(as_json: AsJson = False) -> None:
    """Check every hash, packed record, reference and count of the store; fails where one is wrong."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.checking import check_store
    from cudal2_agent.store.store import open_store

    faults = []
    with open_store(load_settings().store_url) as store, Progress() as progress:
        for fault in check_store(store, progress.emit):
            faults.append(fault)
            if not as_json:
                print(fault)
    if as_json:
        print(json.dumps({"sound": not faults, "faults": faults}))
    elif not faults:
        print("the store is sound")
    raise typer.Exit(1 if faults else 0)
