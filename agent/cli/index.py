"""`cudal2-agent index`: adds, updates, removes and rebuilds releases."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli import index_search, index_state
from cudal2_agent.agent.cli.arguments import AsJson, ReleaseName

if TYPE_CHECKING:
    from cudal2_agent.indexer.pipeline import IndexReport

app = typer.Typer(
    help="The knowledge base: CUTLASS releases, documents, notes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent index add 4.2.0",
)


@app.command("add", epilog="\b\nExample:\n  cudal2-agent index add 4.2.0")
def add(
    source: Annotated[
        str,
        typer.Argument(help="4.2.0, PACKAGE==VERSION, git+URL@TAG, a checkout, an archive, or a folder.", show_default=False),
    ],
    name: Annotated[
        str | None, typer.Option("--name", help="The release's name.", show_default="made from its version")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Index a CUTLASS release or a folder of code or documents. Only text that no release holds yet is embedded."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.index import indexing
    from cudal2_agent.contract.settings.settings import load_settings

    with Progress() as progress:
        reports = indexing.add(source, name, load_settings(), progress.emit)
    _print_reports(reports, as_json)


@app.command("update", epilog="\b\nExample:\n  cudal2-agent index update cutlass-4.2.0")
def update(
    release: Annotated[str | None, typer.Argument(metavar="[RELEASE]", help="As `index list` names it; default: all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Read the origins of releases again, and index what changed, the notes included."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.index import indexing
    from cudal2_agent.contract.errors import KnowledgeError
    from cudal2_agent.contract.settings.settings import load_settings

    with Progress() as progress:
        reports, trouble = indexing.update(release, load_settings(), progress.emit)
    _print_reports(reports, as_json)
    if trouble:
        raise KnowledgeError("; ".join(trouble))


@app.command("remove", epilog="\b\nExample:\n  cudal2-agent index remove cutlass-4.1.0")
def remove(release: ReleaseName, as_json: AsJson = False) -> None:
    """Remove a release, and the files that no other release shares."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.index import indexing
    from cudal2_agent.contract.settings.settings import load_settings

    with Progress() as progress:
        name, dropped = indexing.remove(release, load_settings(), progress.emit)
    print(json.dumps({"removed": name, "files": dropped}) if as_json else f"{name} removed, with {dropped:,} files")


@app.command("rebuild", epilog="\b\nExample:\n  cudal2-agent index rebuild")
def rebuild(as_json: AsJson = False) -> None:
    """Embed everything again with the model of the settings. Nothing is fetched or split again."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.index import indexing
    from cudal2_agent.contract.settings.settings import load_settings

    with Progress() as progress:
        embedded, model = indexing.rebuild(load_settings(), progress.emit)
    print(json.dumps({"embedded": embedded, "model": model}) if as_json else f"{embedded:,} pieces embedded with {model}")


app.command("list", epilog=index_state.LIST_EXAMPLE)(index_state.list_releases)
app.command("status", epilog=index_state.STATUS_EXAMPLE)(index_state.status)
app.command("diff", epilog=index_state.DIFF_EXAMPLE)(index_state.diff)
app.command("verify", epilog=index_state.VERIFY_EXAMPLE)(index_state.verify)
app.command("search", epilog=index_search.EXAMPLE)(index_search.search)


def _print_reports(reports: "Sequence[IndexReport]", as_json: bool) -> None:
    if as_json:
        print(json.dumps({"releases": [report.model_dump(mode="json") for report in reports]}))
        return
    for report in reports:
        print(
            f"{report.release}: {report.files:,} files ({report.split:,} new), {report.pieces:,} pieces "
            f"({report.embedded:,} embedded), {report.seconds:.1f} s"
        )
