"""Reads the limits that a server's error names for a request that is too large.

Servers say it in many words, so no sentence is known here. A number is read by its role: by a formula such as `a + b > c`, else
by the nearest words of its clause, else by the sum that it makes with the limit that was sent. Numbers below 16 have no role.
Covered: tests/policies/chat/server/size_messages.py lists the messages.
"""

import re
from dataclasses import dataclass, field
from typing import Literal

Subject = Literal["prompt", "reply", "context", "whole"]


@dataclass(frozen=True)
class TooLarge:
    """What an error names, in tokens; None where it names nothing.

    `context`: for prompt and reply together. `reply`: for a reply alone. `prompt`: what this prompt has; at least that where
    `at_least`. `over`: by how much the prompt exceeds the context.
    """

    context: int | None = None
    reply: int | None = None
    prompt: int | None = None
    at_least: bool = False
    over: int | None = None

    @property
    def names_limit(self) -> bool:
        return any(number is not None for number in (self.context, self.reply, self.over))


_SIZE = re.compile(r"token|context|max\w*tokens|prompt|input|length|长度|上下文|字数", re.IGNORECASE)
_EXCESS = re.compile(
    r"exceed|too (?:long|large|big|many|high)|(?:long|larg|great|bigg|few|high)er than|(?:more|less) than|maximum|at most"
    r"|(?:must|should) (?:be|have)|reduce|overflow|not enough|range|up to|limit|\bfit\b|shorter|[<>]=?|[≤≥]|超|上限|最大",
    re.IGNORECASE,
)
_DIGIT_GROUPS = re.compile(r"(?<=\d)[,_'](?=\d{3}(?!\d))")
_THOUSANDS = re.compile(r"(?<![\w.-])(\d{1,4})[kK](?![\w.-])")
_DECIMALS = re.compile(r"(?<![\w.])(\d+)\.0+(?![\w.])")
# `[1, 8192]`, `from 1 (inclusive) to 8193 (exclusive)`: the second number is the limit.
_RANGE = re.compile(r"(?<![=\w])[\[(]\s*\d{1,2}\s*,\s*(\d+)\s*[\])]|(?:from|between) \d{1,2}(?: \(\w+\))? (?:to|and) (\d+)")
_BELOW = re.compile(r"(\d+) \(exclusive\)")
# `inputs` tokens + `max_new_tokens`: the sum of two names is the context.
_SUM_OF_NAMES = re.compile(r"\W?(?:prompt|input)\w*\W?(?: \w+)? (?:\+|plus|and) \W?max\w*tokens\W?", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.-])\d{2,9}(?!\w|-(?!token)|\.\d)")
_TOKENS = r"(?: tokens?)?"
_SUM_ABOVE = re.compile(rf"(\d+){_TOKENS} \+ (\d+){_TOKENS} >=? (\d+)")
_ABOVE_DIFFERENCE = re.compile(r"(\d+) >=? (\d+) - (\d+)")
_ABOVE = re.compile(rf"(\d+){_TOKENS} ?(?:>=?|≥) ?(?:\w+[:=] ?)?(\d+)")

_CLAUSE_END = re.compile(r"[,;:()\[\]!?，；：（）。]|\.(?=\s|$)|\b(?:and|plus|while|but)\b|(?<=\s)\+(?=\s|$)")
_SUBJECTS: dict[Subject, re.Pattern[str]] = {
    "reply": re.compile(
        r"max_(?:new_|completion_|output_)?tokens|maxoutputtokens|completions?\b|output|generat|new tokens"
        r"|\brepl(?:y|ies)\b|输出|回复",
        re.IGNORECASE,
    ),
    "context": re.compile(
        r"context(?:[ _-]?(?:length|size|window|limit)| is| of| has|:)|\bwindow\b|n_ctx"
        r"|max_(?:model|seq|total|num|context)_?\w+|\bsum of|token limit|model'?s? (?:maximum |max )?length|上下文",
        re.IGNORECASE,
    ),
    "prompt": re.compile(
        r"prompt|(?<![a-z])inputs?|messages?\b|functions?\b|\btools?\b|\bkeep\b|n_keep|instructions|输入|提示", re.IGNORECASE
    ),
    "whole": re.compile(r"request(?:ed|s)?\b|\btotal\b|\bgiven\b|\bcurrent\b|\bactual\b|\bgot\b|请求|总", re.IGNORECASE),
}
_LIMIT = re.compile(
    r"\bmax(?:imum|imal)?\b|\bmax_(?!(?:new_|completion_|output_)?tokens)\w+|limit|at most|no more than|up to"
    r"|(?:must|should) (?:be|have)|(?:less|fewer|smaller|longer|larger|greater|more|higher) than|allow|supports?\b|configured"
    r"|exceed(?:s|ing)?\b|not exceed|only|上限|最大|超过",
    re.IGNORECASE,
)
_LIMIT_AFTER = re.compile(r"[ `'\"-]*(?:tokens? )?(?:max(?:imum)?\b|limit)", re.IGNORECASE)
_BY = re.compile(r"\bby(?: about| at least)?$")
_AT_LEAST = re.compile(r"\b(?:at least|more than|over)$")


@dataclass(frozen=True)
class _Number:
    value: int
    subject: Subject | None
    is_limit: bool = False
    is_excess: bool = False
    at_least: bool = False


def read_size(message: str, sent: int | None, estimate: int) -> TooLarge | None:
    """What an error says of a request that is too large; None if it says something else.

    `sent`: the limit of the reply in the request, None if it had none. `estimate`: about how many tokens the prompt has.
    """
    if not _SIZE.search(message):
        return None
    numbers = _numbers(_plain(message))
    if not any(number.is_limit or number.is_excess for number in numbers):
        numbers = _by_sums([number.value for number in numbers], sent) or numbers
    limits = [number for number in numbers if number.is_limit]
    prompt, at_least = _prompt(numbers, sent, estimate)
    context = min((one.value for one in limits if one.subject != "reply"), default=None)
    if not _EXCESS.search(message) and (context is None or context >= (prompt or estimate) + (sent or 0)):
        return None
    return TooLarge(
        context=context,
        reply=min((one.value for one in limits if one.subject == "reply"), default=None),
        prompt=prompt,
        at_least=at_least,
        over=next((number.value for number in numbers if number.is_excess), None),
    )


def _plain(message: str) -> str:
    """The message with each number as digits, and each range and each sum of names as one limit."""
    text = " ".join(message.split())
    text = _DECIMALS.sub(r"\1", _THOUSANDS.sub(r"\g<1>000", _DIGIT_GROUPS.sub("", text)))
    text = _BELOW.sub(lambda found: str(int(found[1]) - 1), text)
    return _SUM_OF_NAMES.sub(" context length ", _RANGE.sub(lambda found: f"at most {found[1] or found[2]}", text))


@dataclass
class _Roles:
    """Numbers whose role a formula gives, by their place in the text."""

    found: dict[int, _Number] = field(default_factory=dict)

    def give(self, match: re.Match[str], *roles: tuple[Subject | None, bool]) -> None:
        for group, (subject, is_limit) in enumerate(roles, 1):
            self.found.setdefault(match.start(group), _Number(int(match[group]), subject, is_limit))


def _numbers(text: str) -> list[_Number]:
    roles = _Roles()
    for match in _SUM_ABOVE.finditer(text):
        roles.give(match, ("prompt", False), ("reply", False), ("context", True))
    for match in _ABOVE_DIFFERENCE.finditer(text):
        roles.give(match, ("reply", False), ("context", True), ("prompt", False))
    for match in _ABOVE.finditer(text):
        subject = _earlier_subject(text[: match.start(1)])
        roles.give(match, (subject, False), ("reply" if subject == "reply" else "context", True))
    places = list(_NUMBER.finditer(text))
    numbers = []
    for position, place in enumerate(places):
        begin = places[position - 1].end() if position else 0
        end = places[position + 1].start() if position + 1 < len(places) else len(text)
        by_words = _by_words(text[begin : place.start()], int(place[0]), text[place.end() : end], text[:begin])
        numbers.append(roles.found.get(place.start(), by_words))
    return [number for number in numbers if number.value >= 16]


def _by_words(before: str, value: int, after: str, earlier: str) -> _Number:
    """The role of a number by the nearest words of its clause. A limit without a subject is of what was spoken of before."""
    left = before.rstrip(" :=('\"`[<>≤*：（")
    ends = [match.end() for match in _CLAUSE_END.finditer(left)]
    left = left[ends[-1] if ends else 0 :]
    right = _CLAUSE_END.split(after.lstrip("'\"`"), maxsplit=1)[0]
    is_limit = bool(_LIMIT.search(left) or _LIMIT_AFTER.match(right))
    nearest: dict[Subject, int] = {}
    for named, pattern in _SUBJECTS.items():
        gaps = [len(left) - match.end() for match in pattern.finditer(left)]
        gaps += [match.start() for match in pattern.finditer(right)]
        if gaps:
            # `requested 100 output tokens`: what is counted weighs more than that it was requested.
            nearest[named] = min(gaps) + (1000 if named == "whole" else 0)
    subject = next((one for one, _ in sorted(nearest.items(), key=lambda item: item[1])), None)
    if subject == "context":
        is_limit = True
    if is_limit and subject in (None, "whole"):
        subject = _earlier_subject(earlier + before, together=True)
    by = _BY.search(left)
    return _Number(value, subject, is_limit and not by, bool(by), bool(_AT_LEAST.search(left)) and not is_limit)


def _earlier_subject(text: str, *, together: bool = False) -> Subject | None:
    """What the sentence so far speaks of: its last subject. `together`: of a prompt and a reply, it is their sum."""
    sentence = re.split(r"\. ", text)[-1]
    last = {subject: max((m.end() for m in pattern.finditer(sentence)), default=-1) for subject, pattern in _SUBJECTS.items()}
    if together and last["prompt"] >= 0 and last["reply"] >= 0:
        return "context"
    subject = max(last, key=lambda one: last[one])
    return subject if last[subject] >= 0 else None


def _by_sums(values: list[int], sent: int | None) -> list[_Number]:
    """The roles of numbers that no words explain: prompt + sent = whole, and the limit is less. Of two, the limit is less."""
    distinct = sorted(set(values))
    for prompt in distinct if sent else ():
        others = list(values)
        if prompt + (sent or 0) in values:
            for one in (prompt, prompt + (sent or 0), sent):
                if one in others:
                    others.remove(one)
            limit = max((one for one in others if one < prompt + (sent or 0)), default=None)
            return [_Number(prompt, "prompt"), *([_Number(limit, "context", is_limit=True)] if limit else [])]
    if len(distinct) == 2:
        return [_Number(distinct[1], "whole"), _Number(distinct[0], "context", is_limit=True)]
    return []


def _prompt(numbers: list[_Number], sent: int | None, estimate: int) -> tuple[int | None, bool]:
    """The tokens of the prompt, and whether that is only the least that it can have."""
    counts = [number for number in numbers if not (number.is_limit or number.is_excess)]
    said = [number for number in counts if number.subject == "prompt"]
    wholes = [number for number in counts if number.subject == "whole"]
    named = next((number.value for number in counts if number.subject == "reply"), None)
    asked = sent or 0 if named is None else named
    if said:
        parts = list(dict.fromkeys(number.value for number in said))  # a number that is repeated counts once
        together = sum(parts) + asked in [whole.value for whole in wholes]
        return sum(parts) if together else max(parts), any(number.at_least for number in said)
    values = [number.value for number in counts]
    if summed := [value for value in values if sent and value + sent in values]:
        return max(summed), False
    unnamed = [number for number in counts if number.subject is None and number.value != sent]
    if not (wholes or unnamed):
        return None, False
    whole = max(wholes or unnamed, key=lambda number: number.value)
    less = whole.value - asked
    if named is None and less > estimate / 3:  # the reply's limit may be in it or not: at least this is the prompt
        return less, True
    prompt = whole.value if named is None else less
    return (prompt if prompt > 0 else None), whole.at_least
