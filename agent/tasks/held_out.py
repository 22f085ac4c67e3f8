"""Problems that no generated task may be: hashes of their texts and of their operations (`signature.py`), never their text.

`kernelbench.json` holds those of KernelBench's 250 problems, as `tasks fingerprint` writes them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from cudal2_agent.agent.tasks.problem_sources import Problem
from cudal2_agent.agent.tasks.signature import signature, text_hash
from cudal2_agent.contract.base import Record
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.sandbox.modules.tracing.tracer import Tracer

KERNELBENCH = Path(__file__).with_name("kernelbench.json")


class HeldOut(Record):
    """Hashes, in order. `torch`: the version that traced the operations; another one may take a module apart in another way.

    `problems`: how many files there were; one that does not trace has a text only.
    """

    source: str
    torch: str
    problems: int
    texts: tuple[str, ...]
    signatures: tuple[str, ...]


class Fingerprint(Record):
    """Of one file. `signature`: empty where it does not trace."""

    text: str
    signature: str = ""
    reason: str = ""


def read_held_out(path: Path) -> HeldOut:
    """Raises: UsageError."""
    try:
        return parse_record(HeldOut, read_file(path).decode())
    except (OSError, ValueError) as exc:
        raise UsageError(
            f"{path} holds no fingerprints ({exc}); `tasks fingerprint SOURCE --out FILE` writes such files"
        ) from exc


def fingerprints(
    problems: Sequence[Problem], tracer: Tracer, read: Callable[[Path], str], known: Mapping[str, Fingerprint]
) -> Iterator[tuple[Problem, Fingerprint]]:
    """Of each problem. `known`: of earlier calls, by the text's hash. Raises: UsageError for one that cannot be read."""
    for problem in problems:
        text = read(problem.path)
        yield problem, known.get(text_hash(text)) or _fingerprint(text, problem.name, tracer)


def held_out(source: str, torch: str, found: Iterable[Fingerprint]) -> HeldOut:
    found = list(found)
    return HeldOut(
        source=source,
        torch=torch,
        problems=len(found),
        texts=tuple(sorted({each.text for each in found})),
        signatures=tuple(sorted({each.signature for each in found if each.signature})),
    )


def _fingerprint(text: str, name: str, tracer: Tracer) -> Fingerprint:
    try:
        return Fingerprint(text=text_hash(text), signature=signature(tracer.trace(text, name)))
    except UsageError as exc:
        return Fingerprint(text=text_hash(text), reason=str(exc).removeprefix(f"{name}: "))
