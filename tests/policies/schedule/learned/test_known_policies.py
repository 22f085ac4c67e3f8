"""Policies by name and by path: those that ship, those of the home folder, files, and what is left out."""

from pathlib import Path

import pytest

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.policies.schedule.learned.known_policies import find_policy, known_policies
from tests.doubles.learned_policies import write_policy


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
