"""Files of weights: what is read, and what is refused with which words."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.plan.chip import REFERENCE_CHIPS
from cudal2_agent.contract.records.task import Arch, GemmTask
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.learned.boosted_trees import SPLIT
from cudal2_agent.policies.schedule.learned.features import NAMES, features_of
from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior
from cudal2_agent.policies.schedule.learned.network import Network
from cudal2_agent.policies.schedule.learned.policy_file import (
    SHIPPED,
    find_policy,
    known_policies,
    read_card,
    read_weights,
    write_weights,
)
from cudal2_agent.policies.schedule.optimiser.pool_prior import ANALYTIC
from cudal2_agent.policies.schedule.optimiser.schedule_pool import SchedulePool
from tests.doubles.learned_policies import CARD, random_weights, split_trees, write_policy

H200 = REFERENCE_CHIPS[Arch.SM_90A]
TASK = GemmTask(m=64, n=64, k=64)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    card, network, trees = read_weights(write_policy(tmp_path / "mine.safetensors"))
    assert card == CARD == read_card(tmp_path / "mine.safetensors")
    assert trees is None
    features = np.random.default_rng(1).standard_normal((5, len(NAMES)))
    assert network(features).error == pytest.approx(Network(random_weights())(features).error, abs=2e-3)  # matrices are F16
    assert network(features).embedding.shape == (5, 8)


def test_trees_are_written_and_read_as_they_are(tmp_path: Path) -> None:
    grown = split_trees(3, lower=1 / 3, higher=0.1)
    write_weights(tmp_path / "mine.safetensors", random_weights(), CARD, grown)
    card, network, trees = read_weights(tmp_path / "mine.safetensors")
    assert (card, network.inputs) == (CARD, len(NAMES))
    assert trees is not None
    features = np.random.default_rng(1).standard_normal((5, len(NAMES)))
    assert trees.behind(features).tolist() == grown.behind(features).tolist()
    assert trees.good(features).tolist() == grown.good(features).tolist() != grown.behind(features).tolist()
    assert {name: value.dtype for name, value in trees.tensors.items()} == {
        name: value.dtype for name, value in grown.tensors.items()
    }


def test_damaged_trees_are_named(tmp_path: Path) -> None:
    broken = split_trees(len(NAMES) - 1, lower=1.0, higher=0.0)
    broken.good.tensors[SPLIT] = np.array([len(NAMES), -1, -1], np.int16)
    write_weights(tmp_path / "mine.safetensors", random_weights(), CARD, broken)
    with pytest.raises(UsageError, match=r"the weights in .*mine.safetensors cannot be used: the trees split other features"):
        read_weights(tmp_path / "mine.safetensors")


def test_trees_of_another_version_say_so(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "mine.safetensors")
    with safe_open(path, framework="np") as stored:
        tensors, card = {name: stored.get_tensor(name) for name in stored.keys()}, stored.metadata()  # noqa: SIM118
    save_file(tensors | {"trees.split": np.zeros(1)}, str(path), card)
    with pytest.raises(UsageError, match=r"cannot be used: its trees are of another version.*train schedule"):
        read_weights(path)


def test_a_missing_a_damaged_and_a_foreign_file_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no prior at .*; `cudal2-agent prior list`"):
        read_weights(tmp_path / "none.safetensors")
    whole = write_policy(tmp_path / "mine.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"cut.safetensors holds no prior that this version reads"):
        read_weights(tmp_path / "cut.safetensors")
    save_file({"a": np.zeros(3)}, str(tmp_path / "other.safetensors"))
    with pytest.raises(UsageError, match=r"other.safetensors holds no prior"):
        read_card(tmp_path / "other.safetensors")
    missing = {name: value for name, value in random_weights().items() if name != "0.error.weight"}
    write_weights(tmp_path / "part.safetensors", missing, CARD)
    with pytest.raises(UsageError, match=r"the weights in .*part.safetensors cannot be used: '0.error.weight' is missing"):
        read_weights(tmp_path / "part.safetensors")


def test_weights_of_another_version_say_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"prior mine was trained by version 0.1.0 on other features.*train schedule"):
        read_weights(write_policy(tmp_path / "old.safetensors", fingerprint="0" * 16))


def test_a_card_with_unknown_fields_is_refused(tmp_path: Path) -> None:
    body = {**json.loads(CARD.model_dump_json()), "magic": 1}
    save_file(random_weights(), str(tmp_path / "new.safetensors"), {"card": json.dumps(body)})
    with pytest.raises(UsageError, match="holds no prior that this version reads"):
        read_card(tmp_path / "new.safetensors")


def test_layers_that_do_not_fit_are_refused() -> None:
    broken = {**random_weights(), "0.error.weight": np.zeros((1, 9), np.float32)}
    with pytest.raises(ValueError, match="8 outputs is followed by one of 9 inputs"):
        Network(broken)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("0.error.bias", np.float32(1)),
        ("0.error.bias", np.zeros((1, 1), np.float32)),
        ("0.error.weight", np.zeros(8, np.float32)),
        ("0.layers.0.weight", np.zeros((), np.float32)),
        ("features.mean", np.zeros((), np.float32)),
        ("features.deviation", np.zeros(1, np.float32)),
    ],
)
def test_tensors_of_other_ranks_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=r"does not fit its layer|mean and deviation"):
        Network({**random_weights(), name: np.asarray(value)})


def test_the_prior_is_the_analytic_one_times_what_was_learned() -> None:
    pool = SchedulePool(families(TASK.arch), TASK, H200, 0)
    prior = LearnedPrior(CARD, Network({name: np.zeros_like(value) for name, value in random_weights().items()} | scale_one()))
    assert prior.predict_us(pool.entries, TASK, H200) == pytest.approx(ANALYTIC.predict_us(pool.entries, TASK, H200))
    assert prior.predict_us([], TASK, H200).shape == (0,)
    assert prior.knows(TASK, H200)
    assert not prior.knows(TASK, H200.model_copy(update={"name": "H20"}))


def scale_one() -> dict[str, np.ndarray]:
    return {"features.deviation": np.ones(len(NAMES), np.float32)}


def test_features_are_finite_on_every_task_of_the_families() -> None:
    for m, n, k in ((1, 1, 1), (16, 8192, 64), (8192, 64, 16384), (4096, 4096, 64)):
        task = GemmTask(m=m, n=n, k=k)
        pool = SchedulePool(families(task.arch), task, H200, 0)
        features, _ = features_of(pool.entries[:200], task, H200)
        assert np.isfinite(features).all(), task.shape


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.safetensors")), ids=lambda path: path.stem)
def test_a_policy_that_ships_is_small_and_ready_at_once(path: Path) -> None:
    assert path.stat().st_size < 5e6
    begin_s = time.perf_counter()
    card, network, trees = read_weights(path)
    taken_s = time.perf_counter() - begin_s
    assert card.name == path.stem
    assert network.inputs == len(NAMES)
    assert trees is not None
    assert taken_s < 1.0, "0.1 s on an idle machine"


def test_a_search_with_a_learned_prior_imports_no_torch(tmp_path: Path) -> None:
    path = write_policy(tmp_path / "mine.safetensors")
    script = (
        "import sys; from pathlib import Path; from cudal2_agent.policies.schedule.learned.policy_file import read_weights; "
        "from cudal2_agent.policies.schedule.learned.learned_prior import LearnedPrior; "
        "import cudal2_agent.policies.schedule.policy; "
        f"LearnedPrior(*read_weights(Path({str(path)!r}))); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[4], check=False).returncode == 0


# Policies by name and by path: those that ship, those of the home folder, files, and what is left out.
def test_policies_ship_and_those_of_the_home_folder_come_after(tmp_path: Path) -> None:
    assert [one.name for one in known_policies(tmp_path)[0]] == ["h100", "h200"]
    write_policy(tmp_path / "policies" / "b.safetensors", name="b", chips=("H100",))
    write_policy(tmp_path / "policies" / "a.safetensors")
    (tmp_path / "policies" / "c.safetensors").write_bytes(b"half")
    known, reasons = known_policies(tmp_path)
    built_in = [("h100", "built in"), ("h200", "built in")]
    assert [(one.name, one.origin) for one in known] == [*built_in, ("mine", "home"), ("b", "home")]
    assert len(reasons) == 1
    assert "c.safetensors holds no prior" in reasons[0]


def test_a_name_a_stem_or_a_path_is_found(tmp_path: Path) -> None:
    inside = write_policy(tmp_path / "policies" / "a.safetensors")
    outside = write_policy(tmp_path / "elsewhere.safetensors", name="other")
    assert find_policy("mine", tmp_path).path == inside
    assert find_policy("a", tmp_path).path == inside
    found = find_policy(str(outside), tmp_path)
    assert (found.name, found.origin, found.size_bytes) == ("other", "file", outside.stat().st_size)
    with pytest.raises(
        UsageError, match=r"there is no prior 'h300'; choose from auto, analytic, h100, h200, mine, or name a file"
    ):
        find_policy("h300", tmp_path)


def test_an_own_policy_goes_before_one_of_its_name_that_ships(tmp_path: Path) -> None:
    own = write_policy(tmp_path / "policies" / "h200.safetensors", name="h200")
    assert find_policy("h200", tmp_path).path == own


@pytest.mark.parametrize(("chip", "name"), [("H200", "h200"), ("H100 80GB HBM3", "h100")])
def test_the_policy_of_a_chip_that_ships_learned_from_it(tmp_path: Path, chip: str, name: str) -> None:
    assert [one.name for one in known_policies(tmp_path)[0] if chip in one.card.chips] == [name]
    assert find_policy("h100", tmp_path).card.base == "h200"
