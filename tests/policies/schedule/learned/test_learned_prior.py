"""For which tasks and chips a policy is used, and what a search with it proposes first."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.candidate import ScheduleValue
from cudal2_agent.contract.records.task import AccumulatorType, Arch, GemmTask, TimingMode, parse_shape
from cudal2_agent.contract.records.trajectory import Observation, Precedent
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.features import NAMES, features_of
from cudal2_agent.policies.schedule.learned.learned_prior import ASKED, LearnedPrior
from cudal2_agent.policies.schedule.learned.policy_file import find_policy, kind_of, read_weights
from cudal2_agent.policies.schedule.optimiser.pool_entry import PoolEntry
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC, Prior
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from cudal2_agent.policies.schedule.policy import Precedents, SchedulePolicy
from cudal2_agent.policies.schedule.prior import Floats
from tests.doubles.learned_policies import split_trees, write_policy

Schedule = dict[str, ScheduleValue] | None

H200 = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=64, n=64, k=64)


def test_a_policy_knows_its_chips_and_the_kinds_of_task_that_it_is_for(tmp_path: Path) -> None:
    for_all = LearnedPrior(*read_weights(write_policy(tmp_path / "all.safetensors")))
    server = LearnedPrior(*read_weights(write_policy(tmp_path / "server.safetensors", kinds=("server f32",))))
    of_server = TASK.model_copy(update={"mode": TimingMode.SERVER})
    assert for_all.knows(TASK, H200)
    assert for_all.knows(of_server, H200)
    assert not for_all.knows(TASK, H200.model_copy(update={"name": "H100"}))
    assert kind_of(of_server) == "server f32"
    assert server.knows(of_server, H200)
    assert not server.knows(TASK, H200)
    assert not server.knows(of_server.model_copy(update={"accumulate": AccumulatorType.F16}), H200)


def test_a_first_round_ends_with_the_best_of_the_analytic_prior(tmp_path: Path) -> None:
    task = GemmTask(m=1536, n=8960, k=1536)
    learned = LearnedPrior(*read_weights(write_policy(tmp_path / "own.safetensors")))
    seen = Observation(task=task, chip=REFERENCE_CHIPS[task.arch], round=0, seed=0)

    def proposed(prior: Prior, count: int, precedents: Precedents = lambda *_: ()) -> list[dict[str, ScheduleValue] | None]:
        policy = SchedulePolicy(families(task.arch), precedents=precedents, prior_of=lambda *_: prior)
        return [candidate.origin.schedule for candidate in policy.propose(seen, count)]

    pool = SchedulePool(families(task.arch), task, H200, 0, learned)  # more than a sample: it holds neighbours of good entries
    best = dict(pool.entries[int(ANALYTIC.predict_us(pool.entries, task, H200).argmin())].values)
    alone = proposed(learned, 3)
    assert best not in alone
    assert proposed(learned, 8)[:3] == alone
    assert proposed(learned, 8)[-1] == best
    assert len(proposed(learned, 8)) == 8
    earlier = proposed(learned, 8)[5] or {}
    known = Precedent(run_id="earlier", task=task, schedule=earlier, speedup=1.1)
    assert proposed(learned, 4, lambda *_: (known,)) == [earlier, *alone[:2], best]


def test_a_first_round_ends_with_the_best_of_the_trees_and_with_unlike_tiles(tmp_path: Path) -> None:
    """The trees choose among what the network expects to be fastest; nobody names what was named before."""
    task = GemmTask(m=1536, n=8960, k=1536)
    card, network, _ = read_weights(write_policy(tmp_path / "own.safetensors"))
    pool = SchedulePool(families(task.arch), task, H200, 0, LearnedPrior(card, network))
    ranked = [pool.entries[int(place)] for place in np.argsort(pool.predicted_us, kind="stable")]
    leading = ranked[:ASKED]
    column = NAMES.index("prior")
    features = features_of(leading, task, H200)[0]
    trees = split_trees(column, lower=1.0, higher=0.5, bound=float(np.median(features[:, column])))
    learned = LearnedPrior(card, network, trees)
    policy = SchedulePolicy(families(task.arch), prior_of=lambda *_: learned)
    seen = Observation(task=task, chip=H200, round=0, seed=0)
    proposed = [candidate.origin.schedule for candidate in policy.propose(seen, 8)]

    def expected(scores: Floats, count: int, named: Sequence[Schedule]) -> list[Schedule]:
        assert scores.min() < scores.max()
        ordered = [leading[int(place)].values for place in np.argsort(scores, kind="stable")]
        return [schedule for schedule in ordered if schedule not in named][:count]

    assert proposed[2:3] == expected(-trees.good(features), 1, proposed[:2])
    assert proposed[3:5] == expected(trees.behind(features), 2, proposed[:3])
    assert proposed[5:] == [entry.values for entry in unlike(pool, ranked, proposed[:5], 3)]
    assert len({str(schedule) for schedule in proposed}) == 8
    four = [candidate.origin.schedule for candidate in policy.propose(seen, 4)]
    assert four[:3] == [*proposed[:2], *expected(trees.behind(features), 1, proposed[:2])]
    assert four[3:] == [entry.values for entry in unlike(pool, ranked, four[:3], 1)]
    known = Precedent(run_id="earlier", task=task, schedule=four[3] or {}, speedup=1.1)
    after = SchedulePolicy(families(task.arch), precedents=lambda *_: (known,), prior_of=lambda *_: learned).propose(seen, 8)
    groups = [entry.group for one in after if (entry := pool.entry(one.origin.schedule or {})) is not None]
    assert groups.count(groups[0]) == 1, "a precedent's tile is named, too"


def unlike(pool: SchedulePool, ranked: Sequence[PoolEntry], named: Sequence[Schedule], count: int) -> list[PoolEntry]:
    """Of the groups that nobody named, those that the analytic prior expects to be fastest: the first of each in `ranked`."""
    known = {entry.group for entry in ranked if entry.values in named}
    order = np.argsort(ANALYTIC.predict_us(pool.entries, pool.task, pool.chip), kind="stable")
    groups = [group for group in dict.fromkeys(pool.entries[int(place)].group for place in order) if group not in known]
    return [next(entry for entry in ranked if entry.group == group) for group in groups[:count]]


def test_precedents_of_other_shapes_are_tried_where_the_prior_expects_them_near_its_best(tmp_path: Path) -> None:
    task = GemmTask(m=1536, n=8960, k=1536)
    learned = LearnedPrior(*read_weights(write_policy(tmp_path / "own.safetensors")))
    seen = Observation(task=task, chip=H200, round=0, seed=0)
    pool = SchedulePool(families(task.arch), task, H200, 0, learned)
    times = pool.predicted_us / pool.predicted_us.min()
    near = pool.entries[int(np.argmin(np.abs(times - 1.04)))].values
    slow = pool.entries[int(np.argmin(np.abs(times - 1.5)))].values

    def first(prior: Prior, of: GemmTask) -> list[dict[str, ScheduleValue] | None]:
        known = [Precedent(run_id="earlier", task=of, schedule=schedule, speedup=1.1) for schedule in (slow, near)]
        policy = SchedulePolicy(families(task.arch), precedents=lambda *_: known, prior_of=lambda *_: prior)
        return [candidate.origin.schedule for candidate in policy.propose(seen, 4)][:2]

    neighbour = task.model_copy(update={"k": 1024})
    kept = first(learned, neighbour)
    assert kept[0] == near
    assert slow not in kept
    assert first(learned, task) == [slow, near], "what led the shape itself is tried, whatever is expected"
    assert first(ANALYTIC, neighbour) == [slow, near]


@pytest.mark.parametrize(("shape", "common"), [("300x2304x4096", 6), ("1000x1000x1000", 6), ("8192x12288x4096", 3)])
def test_two_seeds_expect_nearly_the_same_schedules_to_be_fastest(shape: str, common: int) -> None:
    """Their samples of the spaces differ: without crossings such seeds had none of eight in common, and other bests."""
    pools = pools_of(shape)
    leading = [{pool.entries[int(place)].key for place in np.argsort(pool.predicted_us)[:8]} for pool in pools]
    assert len(leading[0] & leading[1]) >= common
    assert pools[0].predicted_us.min() == pytest.approx(pools[1].predicted_us.min(), rel=0.002)


def test_where_two_seeds_end_among_forms_that_no_run_has_measured_their_bests_are_alike() -> None:
    first, second = pools_of("300x2304x9216")
    assert first.predicted_us.min() == pytest.approx(second.predicted_us.min(), rel=0.01)


def pools_of(shape: str) -> list[SchedulePool]:
    """Those of two seeds, with the shipped prior."""
    prior = LearnedPrior(*read_weights(find_policy("h200", Path()).path))
    m, n, k = parse_shape(shape)
    task = GemmTask(m=m, n=n, k=k)
    return [SchedulePool(families(task.arch), task, H200, seed, prior) for seed in (1, 2)]
