"""Learned priors, figures of a bench of proposals, and what a language model proposes, as text."""

from collections.abc import Sequence

from cudal2_agent.agent.bench.proposals.estimates import Estimate
from cudal2_agent.agent.bench.proposals.proposal_figures import ArmFigures, BenchFigures
from cudal2_agent.agent.cli.render.alignment import aligned, cell
from cudal2_agent.policies.lm.proposal_worth import ProposerFigures
from cudal2_agent.policies.schedule.learned.policy_file import ANALYTIC_NAME, AUTO, KnownPolicy

_RIGHT = frozenset(range(1, 9))


def prior_lines(known: Sequence[KnownPolicy], used: str, left_out: Sequence[str]) -> list[str]:
    """A row for each prior; the one that searches use is marked."""
    head = ("prior", "chip", "learned from", "date", "KiB", "where")
    rows = [
        (
            f"{'*' if used in (one.name, one.path.stem, str(one.path)) else ' '} {one.name}",
            ", ".join(one.card.chips),
            f"{one.card.schedules:,} schedules of {one.card.runs:,} runs",
            one.card.created,
            f"{one.size_bytes / 1024:,.0f}",
            one.origin if one.origin == "built in" else str(one.path),
        )
        for one in known
    ]
    said = {AUTO: "one trained on the chip, else the analytic prior", ANALYTIC_NAME: "the analytic prior"}
    return [
        *(aligned([head, *rows], right=frozenset({4}), flexible=5) if rows else ["there are no learned priors here"]),
        f"searches use {used}{f': {said[used]}' if used in said else ''}",
        *(f"left out: {reason}" for reason in left_out),
    ]


def figure_lines(figures: BenchFigures) -> list[str]:
    """The arms of a bench, best first."""
    head = ("arm", "first ≤5%", "best of 8 ≤2%", "first", "best of 8", "failed", "propose s", "GPU s")
    arms = sorted(figures.arms, key=lambda arm: (-arm.first_within.value, -arm.best_within.value))
    searches = [arm for arm in arms if arm.search]
    basis = "measured" if figures.basis == "measured" else "PREDICTED, not measured"
    skipped = f"; {figures.skipped} more without a working kernel" if figures.skipped else ""
    return [
        f"{figures.shapes} shapes, {figures.kind}, {basis}, {figures.environment}{skipped}",
        *([f"The best of {figures.confirmed} shapes had a second final, which judges."] if figures.confirmed else []),
        *aligned([head, *(_row(arm) for arm in arms)], right=_RIGHT),
        *(_search_lines(searches) if searches else []),
        "Shares are of shapes, with 95 % intervals; times over the best known are geometric means (1 is the best known).",
        *(_note(arm) for arm in arms if arm.missing or arm.errors),
        "",
    ]


def _row(arm: ArmFigures) -> tuple[str, ...]:
    return (
        arm.name,
        _share(arm.first_within),
        _share(arm.best_within),
        _ratio(arm.first_mean),
        _ratio(arm.best_mean),
        f"{arm.failed}/{arm.proposed}",
        f"{arm.propose_s:.2f}",
        f"{arm.gpu_s:.2f}",
    )


def _search_lines(arms: Sequence[ArmFigures]) -> list[str]:
    head = ("GPU s until 98 % of the best known", "reached", "median", "mean", "schedule's over it")
    rows = [
        (
            arm.name,
            _share(arm.search.reached),
            f"{arm.search.median_s:.2f}",
            f"{arm.search.mean_s:.2f}",
            _ratio(arm.search.reference_over),
        )
        for arm in arms
        if arm.search
    ]
    return ["", *aligned([head, *rows], right=_RIGHT)]


def _share(one: Estimate) -> str:
    return f"{100 * one.value:.0f}% ({100 * one.low:.0f}–{100 * one.high:.0f})"


def _ratio(one: Estimate | None) -> str:
    return cell(one.value if one else None, ".3f")


def _note(arm: ArmFigures) -> str:
    raised = f"; it raised on {arm.errors} shapes" if arm.errors else ""
    return f"{arm.name} proposed {arm.missing} candidates fewer than it could{raised}"


def proposal_lines(figures: Sequence[ProposerFigures]) -> list[str]:
    """Shares of all proposals, and mean values: of first proposals, of all, and of each task's best."""
    head = ("proposer", "tasks", "proposals", "valid", "verified", "distinct", "first", "mean", "best")
    basis = "measured" if all(one.measured for one in figures) else "predicted, at least in part"
    return [
        *aligned([head, *map(_proposer_row, figures)], right=_RIGHT),
        f"Values are {basis}; what is no schedule or fails has -2.",
    ]


def _proposer_row(one: ProposerFigures) -> tuple[str, ...]:
    shares = (f"{share:.0%}" for share in (one.valid, one.verified, one.distinct))
    values = (cell(value, ".3f") for value in (one.first, one.mean, one.best))
    return (one.proposer, str(one.tasks), str(one.proposals), *shares, *values)
