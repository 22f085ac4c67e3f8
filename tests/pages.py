"""The Markdown pages as data: their links, the anchors of their headings, and the files and modules that they name."""

import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = tuple(
    sorted(path.relative_to(ROOT).as_posix() for pattern in ("*.md", "docs/**/*.md", "log/*.md") for path in ROOT.glob(pattern))
)
# May name files of earlier versions.
HISTORY = frozenset({"CHANGELOG.md", *(page for page in PAGES if page.startswith("log/"))})
ELSEWHERE = frozenset({"report.md", "progress.svg", "plan.svg", "cute/layout.hpp"})  # files of a run's folder and of CUTLASS

_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")
_MODULE = re.compile(
    r"python -m ((?:agent|benchmarks|contract|cudal2_agent|indexer|knowledge|policies|processes|sandbox|store|tests)(?:\.\w+)*)"
)
_EARLIER = re.compile(r"`[^`\n]+` at [0-9a-f]{7,40}\b")  # a command of an earlier version, with the last commit that has it
_FUNCTION = re.compile(r"[\w/]+\.py:\w+")
_FILE = re.compile(r"[\w*][\w.*-]*(?:/[\w.*-]+)*(?:/|\.(?:py|cpp|hpp|cuh|md|svg|jsonl))")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def links(page: str) -> list[tuple[str, str]]:
    """(path from the root, anchor) of every relative link."""
    folder = (ROOT / page).parent
    found = []
    for target in _LINK.findall(text(page)):
        path, _, anchor = target.partition("#")
        found.append((str((folder / path).resolve().relative_to(ROOT)) if path else page, anchor))
    return found


@cache
def anchors(page: str) -> frozenset[str]:
    """The anchors that GitHub gives the headings of a page."""
    body = re.sub(r"^```.*?^```", "", text(page), flags=re.MULTILINE | re.DOTALL)
    return frozenset(_slug(heading) for heading in re.findall(r"^#+ (.+)$", body, flags=re.MULTILINE))


def _slug(heading: str) -> str:
    words = re.sub(r"[^\w\- ]", "", heading.lower())
    return words.strip().replace(" ", "-")


def named_files(page: str) -> list[str]:
    """Files and folders of the repository that a page names in backticks; `*` stands for any part of a name."""
    return [
        name for name in _CODE.findall(text(page)) if _FILE.fullmatch(name) and name not in ELSEWHERE and "NAME" not in name
    ]


def named_functions(page: str) -> list[tuple[str, str]]:
    """(file, function) of every `path.py:function` in backticks."""
    found = (name.partition(":") for name in _CODE.findall(text(page)) if _FUNCTION.fullmatch(name))
    return [(path, function) for path, _, function in found]


def defines(path: str, function: str) -> bool:
    """Whether a file of the repository exists and defines a function or method of this name."""
    file = ROOT / path
    return file.exists() and re.search(rf"^\s*def {function}\(", file.read_text(encoding="utf-8"), re.MULTILINE) is not None


def named_modules(page: str) -> list[str]:
    """Modules that a page runs by `python -m` in this version."""
    return _MODULE.findall(_EARLIER.sub("", text(page)))


@cache
def tracked() -> tuple[str, ...]:
    """Paths of all files and folders under version control, folders with a closing slash."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = listed.stdout.splitlines()
    folders = {f"{parent.as_posix()}/" for file in files for parent in Path(file).parents if parent != Path()}
    return (*files, *sorted(folders))


def exists(name: str) -> bool:
    """Whether a path of the repository is, or ends in, this name."""
    pattern = re.compile(r"(?:.*/)?" + re.escape(name).replace(r"\*", "[^/]*"))
    return any(pattern.fullmatch(path) for path in tracked())


def runs(module: str) -> bool:
    """Whether `python -m MODULE` finds something to run."""
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()
