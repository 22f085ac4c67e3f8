"""`cudal2-agent index search`: one query with readable answers, or a file of queries with JSON answers."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer
from pydantic import BaseModel, ConfigDict

from cudal2_agent.agent.cli.arguments import AsJson, read_arch
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record
from cudal2_agent.contract.records.knowledge import Hit, Query, Retriever

EXAMPLE = '\b\nExample:\n  cudal2-agent index search "consumer releases a pipeline stage" --arch sm_90a -k 5'
FILE_COUNT, PERSON_COUNT = 10, 6
WIDEST = 150  # lines; a longer answer does not locate anything
PREVIEW_LINES = 6

Names = list[str] | None


class Question(BaseModel):
    """A line of a file of questions; other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str | int
    query: str


def search(
    words: Annotated[str | None, typer.Argument(metavar="WORDS", help="Plain words, a name, a message.")] = None,
    queries: Annotated[
        Path | None, typer.Option("--queries", help='JSON lines of {"id", "query"} instead; - for stdin.')
    ] = None,
    arch: Annotated[str | None, typer.Option("--arch", help="Only pieces that apply to this target, like sm_90a.")] = None,
    release: Annotated[Names, typer.Option("--release", help="Only these releases; repeatable.", show_default="all")] = None,
    kind: Annotated[Names, typer.Option("--kind", help="Only these kinds of pieces: class, function, section …")] = None,
    path: Annotated[str, typer.Option("--path", help="Only this folder or file, or paths like 'cute/*sm90*'.")] = "",
    count: Annotated[int | None, typer.Option("-k", min=1, max=1000, help="Results.", show_default="6; 10 a query")] = None,
    full: Annotated[bool, typer.Option("--full", help="All lines of each result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Search the indexed releases and notes.

    With --queries: a line of {"id", "results"} for each question, from code releases unless --release says otherwise.
    """
    from cudal2_agent.agent.index.knowledge_base import find_release, open_library
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.knowledge.search import open_search

    if (words is None) == (queries is None):
        raise UsageError('give words to search for, or --queries FILE; for example: cudal2-agent index search "wgmma fence"')
    if words is not None and not words.strip():
        raise UsageError("the query is empty; give words, a name or a message")
    filters = Query(
        words=words or "",
        arch=read_arch(arch) if arch else None,
        only_arch=bool(arch),
        kinds=_kinds(kind or []),
        path=path,
        count=count or (FILE_COUNT if queries else PERSON_COUNT),
    )
    with open_library(load_settings()) as store:
        retriever = open_search(store)
        named = tuple(find_release(store, name).name for name in release or ())
        if queries is None:
            query = filters.model_copy(update={"releases": named})
            _print_hits(retriever.search(query), query, as_json, full)
            return
        code = tuple(each.name for each in store.releases() if each.kind == "code")
        if not named and not code:
            raise UsageError("no code release is indexed; add one with: cudal2-agent index add 4.2.0, or say --release notes")
        _answer_file(queries, retriever, filters.model_copy(update={"releases": named or code}))


def _kinds(given: list[str]) -> tuple[str, ...]:
    from typing import get_args

    from cudal2_agent.contract.records.knowledge import PieceKind

    for kind in given:
        if kind not in get_args(PieceKind):
            raise UsageError(f"--kind {kind!r} is not known; choose from {', '.join(get_args(PieceKind))}")
    return tuple(given)


def _answer_file(file: Path, retriever: Retriever, filters: Query) -> None:
    with _opened(file) as lines:
        for question in read_questions(lines, str(file)):
            hits = retriever.search(filters.model_copy(update={"words": question.query}))
            print(json.dumps({"id": question.id, "results": [result_of(hit) for hit in hits]}), flush=True)


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    try:
        with file.open("rb") as lines:
            yield lines
    except OSError as exc:
        raise UsageError(f"{file} cannot be read: {exc.strerror}") from exc


def read_questions(lines: IO[bytes], name: str) -> Iterator[Question]:
    """Raises: UsageError with the number of a line that is not a question. Blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield parse_record(Question, line.strip().removeprefix(b"\xef\xbb\xbf"))
        except ValueError as exc:
            raise UsageError(f'{name} line {number}: {exc}; a line is {{"id": …, "query": …}}') from exc


def result_of(hit: Hit) -> dict[str, object]:
    """A hit as JSON: at most WIDEST lines. Of a longer definition, the lines that matched."""
    start, end = hit.chunk.start_line, hit.chunk.end_line
    if end - start >= WIDEST and hit.matched is not None:
        start, end = hit.matched
    return {
        "path": hit.chunk.path,
        "symbol": hit.chunk.symbol,
        "start_line": start,
        "end_line": min(end, start + WIDEST - 1),
        "score": hit.score,
        "release": hit.chunk.release,
    }


def _print_hits(hits: list[Hit], query: Query, as_json: bool, full: bool) -> None:
    if as_json:
        print(json.dumps({"query": query.model_dump(mode="json"), "hits": [hit.model_dump(mode="json") for hit in hits]}))
        return
    if not hits:
        print("nothing was found; try other words or fewer filters")
    for rank, hit in enumerate(hits, start=1):
        chunk = hit.chunk
        print(f"{rank:>2}  {chunk.path}:{chunk.start_line}-{chunk.end_line}  {chunk.symbol}  ({chunk.release})")
        if hit.twins:
            print(f"    also in: {', '.join(hit.twins)}")
        print("\n".join(f"    | {line}".rstrip() for line in _shown(hit, full)) + "\n")


def _shown(hit: Hit, full: bool) -> list[str]:
    """All lines, or the first lines with text of those that matched."""
    lines = hit.chunk.text.splitlines()
    if full:
        return lines
    first = hit.matched[0] - hit.chunk.start_line if hit.matched else 0
    return [line for line in lines[first:] if any(c.isalnum() for c in line)][:PREVIEW_LINES]
