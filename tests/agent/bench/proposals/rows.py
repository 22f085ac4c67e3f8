"""Rows of a bench of policies, with scripted candidates."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

from cudal2_agent.agent.bench.proposals.proposal_rows import ArmProposals, Basis, BenchSize, JudgedCandidate, ProposalRow
from cudal2_agent.contract.records.task import GemmTask
from tests.doubles import NOW, TASK


def judged(name: str, ratio: float | None, raced: float | None = None, **changes: object) -> JudgedCandidate:
    """A candidate with its ratio over AutoTuning by screening; one without did not compile."""
    fields: dict[str, object] = {
        "candidate_id": name,
        "schedule": None,
        "status": "compile_failed" if ratio is None else "measured",
        "screened": ratio,
        "raced": raced,
        "race_status": None if raced is None else "measured",
        "gpu_s": 0.5,
    }
    return JudgedCandidate.model_validate({**fields, **changes})


def proposal_row(
    candidates: Sequence[JudgedCandidate],
    arms: Mapping[str, Sequence[str]],
    *,
    task: GemmTask = TASK,
    basis: Basis = "measured",
    budget: int = 8,
    age_days: int = 0,
    errors: Mapping[str, str] = {},
) -> ProposalRow:
    """A row in which every arm proposed its candidates in one round, or in rounds of eight where it may search."""
    size = BenchSize(count=8, budget=budget)
    return ProposalRow(
        task=task,
        chip="H200",
        environment="scripted" if basis == "measured" else None,
        basis=basis,
        size=size,
        seed=0,
        arms=tuple(_arm(name, ids, errors.get(name, "")) for name, ids in arms.items()),
        candidates=tuple(candidates),
        known=(),
        prepare_s=1.0,
        race_s=1.0,
        seconds=4.0,
        finished_at=NOW - timedelta(days=age_days),
    )


def _arm(name: str, ids: Sequence[str], error: str) -> ArmProposals:
    rounds = tuple(tuple(ids[place : place + 8]) for place in range(0, len(ids), 8))
    return ArmProposals(name=name, rounds=rounds, propose_s=(0.25,) * len(rounds), error=error)
