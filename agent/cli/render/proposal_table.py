"""The worth of proposals as text: a row for each proposer."""

from collections.abc import Sequence

from cudal2_agent.agent.cli.render.alignment import aligned, cell
from cudal2_agent.policies.lm.proposal_worth import ProposerFigures

_RIGHT = frozenset(range(1, 9))


def proposal_lines(figures: Sequence[ProposerFigures]) -> list[str]:
    """Shares of all proposals, and mean values: of first proposals, of all, and of each task's best."""
    head = ("proposer", "tasks", "proposals", "valid", "verified", "distinct", "first", "mean", "best")
    basis = "measured" if all(one.measured for one in figures) else "predicted, at least in part"
    return [
        *aligned([head, *map(_row, figures)], right=_RIGHT),
        f"Values are {basis}; what is no schedule or fails has -2.",
    ]


def _row(one: ProposerFigures) -> tuple[str, ...]:
    shares = (f"{share:.0%}" for share in (one.valid, one.verified, one.distinct))
    values = (cell(value, ".3f") for value in (one.first, one.mean, one.best))
    return (one.proposer, str(one.tasks), str(one.proposals), *shares, *values)
