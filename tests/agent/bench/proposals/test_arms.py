"""The arms: what they know, what they are kept from, and names that are none; and the tasks of a bench."""

import json
from pathlib import Path

import pytest

from cudal2_agent.agent.bench.proposals import arms
from cudal2_agent.agent.bench.proposals.arms import RandomSchedules, from_store, known_schedules, own_arms, read_arms
from cudal2_agent.agent.bench.proposals.bench_shapes import read_bench_shapes
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.contract.records.trajectory import Attempt, Observation, Precedent
from cudal2_agent.policies.schedule.families.latency.family import Latency
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.policy import SchedulePolicy
from cudal2_agent.store.store import Store, open_store
from tests.doubles.learned_policies import write_policy

CHIP = REFERENCE_CHIPS[Arch.SM_80]
TASK = GemmTask(m=64, n=64, k=64, arch=Arch.SM_80)
NEIGHBOUR = TASK.model_copy(update={"m": 128})
SEEN = Observation(task=TASK, chip=CHIP, round=1, seed=0)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path / 's.sqlite'}")


def remembering(patch: pytest.MonkeyPatch) -> list[Precedent]:
    """A store that holds the worst predicted schedule of two shapes."""
    space = list(families(TASK.arch)[0].space(TASK, CHIP))
    precedents = [
        Precedent(run_id="r", task=task, schedule=space[place].values(), speedup=1.0)
        for task, place in ((TASK, -1), (NEIGHBOUR, -2))
    ]
    patch.setattr(arms.StoredPrecedents, "near", lambda *_: precedents)
    return precedents


def test_precedents_of_judged_shapes_are_kept_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    own, neighbour = remembering(monkeypatch)
    told = from_store(store, set())(TASK.arch, 0).propose(SEEN, 2)
    kept_back = from_store(store, {TASK.shape})(TASK.arch, 0).propose(SEEN, 2)
    assert told[0].origin.schedule == own.schedule
    assert kept_back[0].origin.schedule == neighbour.schedule
    assert own.schedule not in [one.origin.schedule for one in kept_back]


def test_only_runs_of_the_task_itself_tell_what_is_known(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    own, _ = remembering(monkeypatch)
    assert known_schedules(store)(TASK, CHIP) == [own]


def test_the_arm_without_precedents_follows_the_prior_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    remembering(monkeypatch)
    arm = own_arms(store, set())["schedule"]()
    ids = [one.id for one in arm.open(TASK.arch, 0).propose(SEEN, 4)]
    assert ids == [one.id for one in SchedulePolicy(families(TASK.arch)).propose(SEEN, 4)]


def test_random_schedules_are_valid_distinct_and_repeatable() -> None:
    policy = RandomSchedules(families(TASK.arch), seed=1)
    first = policy.propose(SEEN, 8)
    assert len({one.id for one in first}) == 8
    assert [one.id for one in RandomSchedules(families(TASK.arch), seed=1).propose(SEEN, 8)] == [one.id for one in first]
    assert [one.id for one in RandomSchedules(families(TASK.arch), seed=2).propose(SEEN, 8)] != [one.id for one in first]
    attempts = tuple(Attempt(candidate_id=one.id, policy="random", schedule=None, status="measured") for one in first)
    assert not {one.id for one in policy.propose(SEEN.model_copy(update={"attempts": attempts}), 8)} & {one.id for one in first}


def test_random_schedules_end_with_the_space() -> None:
    odd = GemmTask(m=8, n=24, k=16, arch=Arch.SM_80)
    policy = RandomSchedules(families(odd.arch))
    space = [one for family in families(odd.arch) for one in family.space(odd, CHIP)]
    assert len(policy.propose(Observation(task=odd, chip=CHIP, round=1, seed=0), len(space) + 5)) == len(space)


def test_a_task_that_no_family_fits_gets_no_proposal() -> None:
    odd = GemmTask(m=7, n=7, k=7)
    seen = Observation(task=odd, chip=REFERENCE_CHIPS[odd.arch], round=1, seed=0)
    assert RandomSchedules([Latency()]).propose(seen, 8) == []


def test_names_and_learned_policies_become_arms(store: Store, tmp_path: Path) -> None:
    write_policy(tmp_path / "policies" / "mine.safetensors", chips=(CHIP.name,))
    found = read_arms(["schedule", "random", "mine", "random"], own_arms(store, set()), tmp_path)
    assert [arm.name for arm in found] == ["schedule", "random", "mine"]
    ids = [[one.id for one in arm.open(TASK.arch, 0).propose(SEEN, 8)] for arm in found]
    assert ids[2] not in ids[:2]
    other = write_policy(tmp_path / "stage2.safetensors", seed=1)
    (again,) = read_arms([str(other)], own_arms(store, set()), tmp_path)
    assert (again.name, again.note != found[2].note) == ("stage2", True)


def test_unknown_arms_are_one_line(store: Store, tmp_path: Path) -> None:
    known = own_arms(store, set())
    with pytest.raises(UsageError, match="arm 'best' is not known; choose from schedule, store, random"):
        read_arms(["best"], known, tmp_path)
    with pytest.raises(UsageError, match="names no arm"):
        read_arms([], known, tmp_path)
    path = write_policy(tmp_path / "w.safetensors", fingerprint="0" * 16)
    with pytest.raises(UsageError, match="other features than this version computes"):
        read_arms([str(path)], known, tmp_path)


def sizes(given: list[str], part: str | None = None) -> list[tuple[int, int, int]]:
    return [(one.m, one.n, one.k) for one in read_bench_shapes(given, part)[0]]


@pytest.fixture
def lists(tmp_path: Path) -> str:
    path = tmp_path / "held.json"
    path.write_text(json.dumps({"seed": 1, "grid": ["64x64x64", "64x64x128"], "off_grid": ["1x8x8", "64x64x64"]}))
    return str(path)


def test_lists_of_a_file(lists: str) -> None:
    assert sizes([lists]) == [(64, 64, 64), (64, 64, 128), (1, 8, 8)]
    assert sizes([f"{lists}:off_grid"]) == [(1, 8, 8), (64, 64, 64)]
    assert sizes([f"{lists}:off_grid,2x8x8", "1x8x8"]) == [(1, 8, 8), (64, 64, 64), (2, 8, 8)]
    assert len(sizes(["grid1000"])) == 1000


def test_parts_are_disjoint_and_whole(lists: str) -> None:
    parts = [sizes([lists, "2x8x8"], f"{number}/3") for number in (1, 2, 3)]
    assert sorted(shape for part in parts for shape in part) == sorted(sizes([lists, "2x8x8"]))


@pytest.mark.parametrize("part", ["0/2", "3/2", "1", "a/b", "/"])
def test_a_wrong_part_is_one_line(part: str) -> None:
    with pytest.raises(UsageError, match="write 1/2"):
        sizes(["64x64x64"], part)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ('{"grid": []}', "", "no shape"),
        ('{"other": []}', "", "holds no list grid or off_grid of shapes; it holds other"),
        ('{"grid": ["64x64x64"]}', ":off", "holds no list off of shapes; it holds grid"),
        ('{"grid": [64]}', "", "64 is not a shape"),
        ('["64x64"]', "", "is not M x N x K"),
        ("[", "", "cannot be read as JSON"),
        ("3", "", "holds no list"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, content: str, name: str, message: str) -> None:
    path = tmp_path / "s.json"
    path.write_text(content)
    with pytest.raises(UsageError, match=message):
        sizes([f"{path}{name}"])


def test_a_list_of_shapes_that_is_none_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "shapes.json").write_text('{"grid": ["64x64x64"], "off_grid": 3}')
    shapes, _ = read_bench_shapes([str(tmp_path / "shapes.json")], None)
    assert [(one.m, one.n, one.k) for one in shapes] == [(64, 64, 64)]
