"""`cudal2-agent campaign import`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson

EXAMPLE = "\b\nExample:\n  cudal2-agent campaign import offline.jsonl.gz server.jsonl.gz --name main"


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Rows of `campaign results --out`, or folders of them.", show_default=False),
    ],
    name: Annotated[str, typer.Option("--name", help="Campaign to add them to.")] = "main",
    as_json: AsJson = False,
) -> None:
    """Add results of another machine. Their shapes count as done, so that the campaign continues with the others here.

    Where one file cannot be read, nothing is added.
    """
    from cudal2_agent.agent.campaign.result_files import import_results
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.store.store import open_store

    with open_store(load_settings().store_url) as store:
        new, total = import_results(store, files, name)
    print(json.dumps({"new": new, "rows": total}) if as_json else f"{new:,} of {total:,} rows are new")
