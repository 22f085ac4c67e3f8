"""A git checkout on disk, or a repository fetched at a tag. Neither configures what git does: see `processes/git.py`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import SourceError
from cudal2_agent.contract.events import Emit
from cudal2_agent.indexer.listing import Skips, is_sound, is_wanted
from cudal2_agent.indexer.sources.command import CommandResult, RunCommand
from cudal2_agent.indexer.sources.scratch import scratch
from cudal2_agent.indexer.tree import ReleaseLabel, Tree, plant
from cudal2_agent.processes.git import borrow, git_command, repository_at

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


class _Git(NamedTuple):
    """A git directory of our own, and the files that belong to it. `scheme`: the only one it may fetch by."""

    git_dir: Path
    work_tree: Path
    run: RunCommand
    scheme: str = ""

    def __call__(self, *arguments: str, timeout_s: float = _LOCAL_TIMEOUT_S) -> CommandResult:
        """Raises: SourceError without git, and beyond the time limit."""
        command = git_command(arguments, self.git_dir, self.work_tree, self.scheme)
        if command is None:
            raise SourceError("git is not installed; install it, or name an archive or the folder inside the checkout")
        return self.run(command, self.work_tree, timeout_s)


@contextmanager
def remote_tree(wanted: Remote, name: str | None, work_dir: Path, emit: Emit, run: RunCommand) -> Iterator[Tree]:
    """The tracked files of a repository at a tag. Raises: SourceError."""
    with scratch(work_dir) as folder, scratch(work_dir) as beside:
        git, version = _checked_out(wanted, folder, beside, run)
        title = wanted.url.rpartition("/")[2].removesuffix(".git")
        yield _tracked(ReleaseLabel(name=name, title=title, version=version, origin=wanted.origin), git, emit)


def fetch_into(folder: Path, wanted: Remote, work_dir: Path, run: RunCommand) -> str:
    """Check out a repository at a tag in an empty folder, and return its version. Raises: SourceError."""
    with scratch(work_dir) as beside:
        return _checked_out(wanted, folder, beside, run)[1]


def _checked_out(wanted: Remote, folder: Path, beside: Path, run: RunCommand) -> tuple[_Git, str]:
    git = _Git(folder / ".git", folder, run, wanted.url.partition("://")[0])
    _fetch(wanted, _source(wanted, beside), git)
    return git, _described(git) if wanted.ref == "HEAD" else wanted.ref.removeprefix("refs/tags/")


def checkout_tree(folder: Path, name: str | None, origin: str, work_dir: Path, emit: Emit, run: RunCommand) -> Tree:
    """The tracked files of a checkout in their state on disk. Raises: SourceError."""
    with scratch(work_dir) as beside:
        _borrow(folder, beside / "git", f"{folder} cannot be read as a git checkout")
        git = _Git(beside / "git", folder, run)
        label = ReleaseLabel(name=name, title=folder.name, version=_described(git), origin=origin)
        return _tracked(label, git, emit)


def _borrow(folder: Path, into: Path, otherwise: str) -> None:
    """A git directory of our own over a repository on disk. Raises: SourceError, which begins with `otherwise`."""
    repository = repository_at(folder)
    if repository is None:
        raise SourceError(f"{otherwise}: there is no git repository")
    try:
        borrow(repository, into)
    except (OSError, ValueError) as exc:
        raise SourceError(f"{otherwise}: {exc.strerror if isinstance(exc, OSError) else exc}") from exc


def _source(wanted: Remote, beside: Path) -> str:
    """The URL to fetch from. A repository on disk would be served under its own configuration: it is borrowed first."""
    scheme, _, rest = wanted.url.partition("://")
    path = Path("/" + unquote(rest).partition("/")[2])
    if scheme != "file" or path.is_file():  # a bundle configures nothing
        return wanted.url
    named = path if repository_at(path) else path.with_name(f"{path.name}.git")
    _borrow(named, beside / "git", f"{wanted.url} cannot be fetched")
    return f"file://{quote(str(beside / 'git'))}"


def _fetch(wanted: Remote, url: str, git: _Git) -> None:
    """Fetch one commit without its history. The reference is a tag, a branch or, if the server allows it, a commit."""
    _checked(git("init", "--quiet", "--template="), wanted.origin)
    fetched = git("fetch", "--quiet", "--depth=1", "--no-tags", "--", url, wanted.ref, timeout_s=FETCH_TIMEOUT_S)
    if "couldn't find remote ref" in fetched.stderr:
        raise SourceError(f"{wanted.url} has no {wanted.ref}{_tags(url, git)}", log=fetched.stderr)
    _checked(fetched, f"{wanted.url} cannot be fetched")
    _checked(git("checkout", "--quiet", "--detach", "FETCH_HEAD", timeout_s=FETCH_TIMEOUT_S), wanted.origin)


def _tags(url: str, git: _Git) -> str:
    """The newest tags, as the end of a message."""
    listed = git("ls-remote", "--tags", "--refs", "--sort=v:refname", "--", url)
    tags = re.findall(r"refs/tags/(\S+)", listed.stdout)
    return f"; its last tags: {', '.join(tags[-_SHOWN_TAGS:])}" if tags else "; it has no tags"


def _tracked(label: ReleaseLabel, git: _Git, emit: Emit) -> Tree:
    folder = git.work_tree
    listed = _checked(git("ls-files", "-z", "--cached"), f"{folder} cannot be read as a git checkout")
    skips = Skips()
    inside = str(folder.resolve())
    wanted = {path for path in listed.stdout.split("\0") if path and is_wanted(path)}
    files = [path for path in sorted(wanted) if is_sound(folder, path, inside, skips)]
    skips.report(label.origin, emit)
    return plant(folder, files, label)


def _described(git: _Git) -> str:
    """The nearest tag and the distance to it; empty for a checkout without a commit."""
    return git("describe", "--tags", "--always").stdout.strip()


def _checked(finished: CommandResult, what: str) -> CommandResult:
    if finished.returncode != 0:
        lines = [line.strip() for line in finished.stderr.splitlines() if line.startswith(("fatal:", "error:"))]
        said = lines[0].partition(": ")[2] if lines else f"git ended with {finished.returncode}"
        raise SourceError(f"{what}: {said[:200]}", log=finished.stderr)
    return finished
