"""Takes plain records apart into what is stored once and what is stored with each, and puts them together again. Pure.

A plain record is what JSON holds of a record: dictionaries, lists, text and numbers. Nothing of it is lost, so that the hash of
a record that an older version wrote is the hash of what is put together, although this version knows more fields.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cudal2_agent.contract.base import digest
from cudal2_agent.contract.records.evaluation import AUTOTUNED, MODULE_BASELINES, Environment

Plain = dict[str, Any]
Kind = str  # of a content: candidate, prompt, chunk or profile
_PLACE = "content"  # the only field of a reference


class Content(NamedTuple):
    """A part that is stored once. `id`: its hash, as the record that it belongs to computes it."""

    kind: Kind
    id: str
    plain: Any

    @property
    def purpose(self) -> str:
        """What it resembles: candidates resemble those of the same kernel family, or of the same kind."""
        if self.kind != "candidate":
            return self.kind
        return f"candidate/{_family(self.plain)}"


def _family(candidate: Plain) -> str:
    plan = candidate.get("plan") or {}
    launches = plan.get("launches") or [{}]
    return str(launches[0].get("entry", candidate.get("kind", "")))[:40]


def candidate_content(candidate: Plain) -> Content:
    """A candidate without its origin, so that equal code is stored once for all policies."""
    plain = {name: value for name, value in candidate.items() if name != "origin"}
    return Content("candidate", candidate_id(plain), plain)


def candidate_id(plain: Plain) -> str:
    """`Candidate.id` or `HostCandidate.id` of a plain candidate. Raises: ValueError where a field is missing."""
    host = plain.get("kind") == "host"
    names = ("source", "flags", "include_dirs", "workspace_bytes") if host else ("source", "flags", "compiler", "plan")
    try:
        return digest(["host" if host else "device", *(plain[name] for name in names)])
    except KeyError as exc:
        raise ValueError(f"a candidate without {exc}") from exc


def content_id(kind: Kind, plain: Any) -> str:
    """The hash by which a content of this kind is stored."""
    return candidate_id(plain) if kind == "candidate" else digest(plain)


class _Parts:
    """The contents of one record, in the order in which references to them were made."""

    def __init__(self) -> None:
        self.contents: list[Content] = []

    def refer(self, content: Content) -> Plain:
        self.contents.append(content)
        return {_PLACE: len(self.contents) - 1}

    def candidate(self, candidate: Plain) -> Plain:
        """A reference beside the origin, which stays with the record."""
        return {**self.refer(candidate_content(candidate)), "origin": candidate["origin"]}

    def whole(self, kind: Kind, plain: Any) -> Plain:
        return self.refer(Content(kind, digest(plain), plain))


def split_observation(plain: Plain) -> tuple[Plain, list[Plain], list[Content]]:
    """An observation without its attempts, its attempts, and the contents that the rest names by place."""
    parts, rest = _Parts(), dict(plain)
    attempts = rest.pop("attempts", [])
    if rest.get("best"):
        rest["best"] = parts.candidate(rest["best"])
    if rest.get("profile"):
        rest["profile"] = parts.whole("profile", rest["profile"])
    for name in ("exemplars", "failures"):
        if rest.get(name):
            rest[name] = [{**each, "candidate": parts.candidate(each["candidate"])} for each in rest[name]]
    if rest.get("recent"):
        rest["recent"] = [parts.candidate(each) for each in rest["recent"]]
    if rest.get("hits"):
        rest["hits"] = [{**hit, "chunk": parts.whole("chunk", hit["chunk"])} for hit in rest["hits"]]
    return rest, attempts, parts.contents


def join_observation(rest: Plain, attempts: Sequence[Plain], content: Callable[[int], Any]) -> Plain:
    """The plain observation again. `content`: the plain content at a place."""

    def candidate(reference: Plain) -> Plain:
        return {**content(reference[_PLACE]), "origin": reference["origin"]}

    plain = {**rest, "attempts": list(attempts)}
    if plain.get("best"):
        plain["best"] = candidate(plain["best"])
    if plain.get("profile"):
        plain["profile"] = content(plain["profile"][_PLACE])
    for name in ("exemplars", "failures"):
        if plain.get(name):
            plain[name] = [{**each, "candidate": candidate(each["candidate"])} for each in plain[name]]
    if plain.get("recent"):
        plain["recent"] = [candidate(each) for each in plain["recent"]]
    if plain.get("hits"):
        plain["hits"] = [{**hit, "chunk": content(hit["chunk"][_PLACE])} for hit in plain["hits"]]
    return plain


def shared_attempts(before: Sequence[Plain], attempts: Sequence[Plain]) -> int:
    """Number of attempts with which both lists begin."""
    count = 0
    for one, other in zip(before, attempts, strict=False):
        if one != other:
            break
        count += 1
    return count


_IN_COLUMNS = ("run_id", "index", "round", "observation_id", "candidate", "profile")


def split_step(plain: Plain) -> tuple[Plain, Content, Content | None]:
    """What is stored with a step only, its candidate, and its profile if it has one."""
    rest = {name: value for name, value in plain.items() if name not in _IN_COLUMNS}
    rest["origin"] = plain["candidate"]["origin"]
    profile = plain.get("profile")
    return rest, candidate_content(plain["candidate"]), Content("profile", digest(profile), profile) if profile else None


def join_step(rest: Plain, columns: Mapping[str, Any], candidate: Plain, profile: Any | None) -> Plain:
    """The plain step again. `columns`: run_id, index, round and observation_id."""
    plain = {**columns, **rest, "candidate": {**candidate, "origin": rest["origin"]}, "profile": profile}
    del plain["origin"]
    return plain


def observation_hash(plain: Plain) -> str:
    """`Observation.id` of a plain observation."""
    return digest(plain)


def step_hash(columns: Mapping[str, Any], candidate_id: str, profile_id: str | None, rest: Plain) -> str:
    """The hash of a step, with its place and the ids of its parts. `columns`: run_id, index, round and observation_id."""
    place = [columns[name] for name in ("run_id", "index", "round", "observation_id")]
    return digest([*place, candidate_id, profile_id, rest])


def exchange_hash(run_id: str, place: Sequence[int], prompt_id: str, rest: Plain) -> str:
    """The hash of an exchange. `place`: round, sample and turn."""
    return digest([run_id, *place, prompt_id, rest])


class Figures(NamedTuple):
    """What filters and statistics need of an evaluation; None where it was not measured."""

    time_us: float | None = None
    speedup: float | None = None
    environment: str | None = None


def _yardstick(baselines: Sequence[Plain]) -> list[float] | None:
    """The samples of `contract.reward.speedup.yardstick_of`."""
    samples = {one["name"]: one["samples_us"] for one in baselines}
    of_module = [samples[name] for name in MODULE_BASELINES if name in samples]
    return samples.get(AUTOTUNED) or min(of_module, key=statistics.median, default=None)


def figures(evaluation: Plain) -> Figures:
    """The columns of a plain evaluation. Units: microseconds; the speedup as `speedup_that_counts`."""
    if evaluation["status"] != "measured":
        return Figures()
    samples = evaluation["timing"]["samples_us"]
    paired = _yardstick(evaluation["baselines"])
    ratios = [theirs / own for own, theirs in zip(samples, paired, strict=True)] if paired else None
    environment = Environment.model_validate(evaluation["environment"])
    return Figures(statistics.median(samples), statistics.median(ratios) if ratios else None, environment.key)
