"""`cudal2-agent index list`, `status`, `diff` and `verify`: the contents of the knowledge base."""

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson

if TYPE_CHECKING:
    from cudal2_agent.contract.records.knowledge import Piece

LIST_EXAMPLE = "\b\nExample:\n  cudal2-agent index list"
STATUS_EXAMPLE = "\b\nExample:\n  cudal2-agent index status --json"
DIFF_EXAMPLE = "\b\nExample:\n  cudal2-agent index diff cutlass-4.1.0 cutlass-4.2.0 --area cutlass/gemm"
VERIFY_EXAMPLE = "\b\nExample:\n  cudal2-agent index verify"


def list_releases(as_json: AsJson = False) -> None:
    """The releases that are indexed, oldest first."""
    from cudal2_agent.agent.index.knowledge_base import open_library
    from cudal2_agent.contract.settings.settings import load_settings

    with open_library(load_settings()) as store:
        releases = store.releases()
    if as_json:
        print(json.dumps([release.model_dump(mode="json") for release in releases]))
        return
    for one in releases:
        size = f"{one.files:>6,} files {one.pieces:>8,} pieces"
        print(f"{one.name:<24} {one.kind:<10} {size}  {one.indexed_at}  {one.origin}")


def status(as_json: AsJson = False) -> None:
    """Folder, size, model and releases of the knowledge base, and what `optimize` would add to it."""
    from cudal2_agent.agent.index.knowledge_base import contents, lacking
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings()
    found = contents(settings)
    missing = lacking(found.releases, settings)
    if as_json:
        print(json.dumps({**found.model_dump(mode="json"), "lacking": missing}))
        return
    print(f"folder:    {found.folder}, {found.bytes / 1e6:,.0f} MB")
    print(f"vectors:   {found.vectors}, made by {found.model}")
    print(f"releases:  {', '.join(release.name for release in found.releases) or 'none'}; {found.pieces:,} pieces")
    print(f"glossary:  {found.placed:,} of {found.concepts:,} concepts lead to a place in the index")
    print(f"default:   {'complete' if not missing else 'lacks ' + ' and '.join(missing)}")


def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="A release, as `index list` names it.", show_default=False)],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Another one.", show_default=False)],
    area: Annotated[str, typer.Option("--area", help="Only files in this folder.", show_default="all")] = "",
    as_json: AsJson = False,
) -> None:
    """Symbols and files that NEW has added, removed or changed, by area."""
    from cudal2_agent.agent.index.knowledge_base import find_release, open_library
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.indexer.diff import diff as compare

    with open_library(load_settings()) as store:
        before, after = find_release(store, old), find_release(store, new)
        found = compare(_under(area, store.pieces(before.name)), _under(area, store.pieces(after.name)))
    if as_json:
        print(json.dumps({"old": before.name, "new": after.name, **found.model_dump(mode="json")}))
        return
    for part in found.areas:
        moved = f", {part.moved} moved here" if part.moved else ""
        print(f"{part.area}: {len(part.added)} added, {len(part.removed)} removed, {len(part.changed)} changed{moved}")
        for mark, symbols in (("+", part.added), ("-", part.removed), ("~", part.changed)):
            print("".join(f"  {mark} {symbol}\n" for symbol in symbols), end="")
    changes = (("added", found.files_added), ("removed", found.files_removed), ("changed", found.files_changed))
    print("files: " + ", ".join(f"{len(paths)} {what}" for what, paths in changes))
    for mark, (_, paths) in zip("+-~", changes, strict=True):
        print("".join(f"  {mark} {path}\n" for path in paths), end="")


def _under(area: str, pieces: "Iterator[tuple[str, Piece, str]]") -> "Iterator[tuple[str, Piece, str]]":
    """The pieces of a folder. Pieces that moved into it or out of it count as added or removed."""
    folder = area.strip("/")
    return (item for item in pieces if not folder or item[0] == folder or item[0].startswith(f"{folder}/"))


def verify(as_json: AsJson = False) -> None:
    """Check files, pieces, vectors and the lexical index against each other; fails where they disagree."""
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.index.knowledge_base import open_library
    from cudal2_agent.contract.settings.settings import load_settings

    with Progress(), open_library(load_settings()) as store:
        found = store.verify()
    if as_json:
        print(json.dumps({"sound": not found, "found": found}))
    else:
        print("\n".join(found) or "the knowledge base is sound")
    raise typer.Exit(1 if found else 0)
