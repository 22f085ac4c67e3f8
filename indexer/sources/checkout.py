"""A git checkout on disk, or a repository fetched at a tag, through the git command without prompts."""

import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit
from cudal2_agent.indexer.listing import Skips, is_sound, is_wanted
from cudal2_agent.indexer.sources.command import CommandResult, RunCommand
from cudal2_agent.indexer.sources.scratch import scratch
from cudal2_agent.indexer.tree import ReleaseLabel, Tree, plant

FETCH_TIMEOUT_S = 900.0
_LOCAL_TIMEOUT_S = 60.0
_SCHEMES = frozenset({"https", "http", "ssh", "git", "file"})  # ext:: and other helpers run commands that the URL names
_URL = re.compile(r"(?P<url>(?P<scheme>\w+)://(?:(?P<user>[^/@]*)@)?[^/@]*/[^@\n]*[^@/\n])(?:@(?P<ref>.*))?")
_REF = re.compile(r"[^\s:*?\[\\^~+-][^\s:*?\[\\^~]*")
_PREFIX = "git+"
_SHOWN_TAGS = 8


class Remote(Record):
    """A repository and a reference in it. `ref` is HEAD if the user named none."""

    url: str
    ref: str
    origin: str


def remote(spec: str) -> Remote | None:
    """The repository of a spec `git+URL@TAG`; None for another kind of spec. Raises: SourceError for a refused URL."""
    if not spec.startswith(_PREFIX):
        return None
    found = _URL.fullmatch(spec.removeprefix(_PREFIX))
    if found is None or found["scheme"] not in _SCHEMES:
        raise SourceError(f"{spec}: write git+https://HOST/PATH@TAG; allowed schemes: {', '.join(sorted(_SCHEMES))}")
    if ":" in (found["user"] or ""):
        raise SourceError("a password in a URL would be stored with the release; use git's credential helper or ssh instead")
    if found["ref"] is not None and not _REF.fullmatch(found["ref"]):
        raise SourceError(f"{spec}: {found['ref']!r} cannot be a tag, a branch or a commit")
    return Remote(url=found["url"], ref=found["ref"] or "HEAD", origin=spec)


@contextmanager
def remote_tree(wanted: Remote, name: str | None, work_dir: Path, emit: Emit, run: RunCommand) -> Iterator[Tree]:
    """The tracked files of a repository at a tag. Raises: SourceError."""
    with scratch(work_dir) as folder:
        _fetch(wanted, folder, run)
        version = _described(folder, run) if wanted.ref == "HEAD" else wanted.ref.removeprefix("refs/tags/")
        title = wanted.url.rpartition("/")[2].removesuffix(".git")
        yield _tracked(folder, ReleaseLabel(name=name, title=title, version=version, origin=wanted.origin), emit, run)


def checkout_tree(folder: Path, name: str | None, origin: str, emit: Emit, run: RunCommand) -> Tree:
    """The tracked files of a checkout in their state on disk. Raises: SourceError."""
    label = ReleaseLabel(name=name, title=folder.name, version=_described(folder, run), origin=origin)
    return _tracked(folder, label, emit, run)


def _fetch(wanted: Remote, folder: Path, run: RunCommand) -> None:
    """Fetch one commit without its history. The reference is a tag, a branch or, if the server allows it, a commit."""
    _checked(_git(["init", "--quiet", "--template=", "."], folder, run), wanted.origin)
    fetched = _git(["fetch", "--quiet", "--depth=1", "--no-tags", "--", wanted.url, wanted.ref], folder, run, FETCH_TIMEOUT_S)
    if "couldn't find remote ref" in fetched.stderr:
        raise SourceError(f"{wanted.url} has no {wanted.ref}{_tags(wanted, folder, run)}", log=fetched.stderr)
    _checked(fetched, f"{wanted.url} cannot be fetched")
    _checked(_git(["checkout", "--quiet", "--detach", "FETCH_HEAD"], folder, run, FETCH_TIMEOUT_S), wanted.origin)


def _tags(wanted: Remote, folder: Path, run: RunCommand) -> str:
    """The newest tags, as the end of a message."""
    listed = _git(["ls-remote", "--tags", "--refs", "--sort=v:refname", "--", wanted.url], folder, run, _LOCAL_TIMEOUT_S)
    tags = re.findall(r"refs/tags/(\S+)", listed.stdout)
    return f"; its last tags: {', '.join(tags[-_SHOWN_TAGS:])}" if tags else "; it has no tags"


def _tracked(folder: Path, label: ReleaseLabel, emit: Emit, run: RunCommand) -> Tree:
    listed = _checked(_git(["ls-files", "-z", "--cached"], folder, run), f"{folder} cannot be read as a git checkout")
    skips = Skips()
    inside = str(folder.resolve())
    wanted = {path for path in listed.stdout.split("\0") if path and is_wanted(path)}
    files = [path for path in sorted(wanted) if is_sound(folder, path, inside, skips)]
    skips.report(label.origin, emit)
    return plant(folder, files, label)


def _described(folder: Path, run: RunCommand) -> str:
    """The nearest tag and the distance to it; empty for a checkout without a commit."""
    return _git(["describe", "--tags", "--always"], folder, run).stdout.strip()


def _git(arguments: Sequence[str], folder: Path, run: RunCommand, timeout_s: float = _LOCAL_TIMEOUT_S) -> CommandResult:
    """Run git without prompts, hooks, file-monitor helpers or translated messages. Raises: SourceError without git."""
    git = shutil.which("git")
    if git is None:
        raise SourceError("git is not installed; install it, or name an archive or the folder inside the checkout")
    environment = ["env", "GIT_TERMINAL_PROMPT=0", "GIT_ASKPASS=", "SSH_ASKPASS=", "GIT_LFS_SKIP_SMUDGE=1", "LC_ALL=C"]
    options = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.askPass="]
    return run([*environment, git, *options, *arguments], folder, timeout_s)


def _checked(finished: CommandResult, what: str) -> CommandResult:
    if finished.returncode != 0:
        lines = [line.strip() for line in finished.stderr.splitlines() if line.startswith(("fatal:", "error:"))]
        said = lines[0].partition(": ")[2] if lines else f"git ended with {finished.returncode}"
        raise SourceError(f"{what}: {said[:200]}", log=finished.stderr)
    return finished
