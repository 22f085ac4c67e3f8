"""The search over a library that is made up: what it accepts, and how long each configuration takes."""

import random

import pytest

from benchmarks.peers.lt_search import ATTRIBUTES, Descent, LtConfiguration, neighbours
from cudal2_agent.sandbox.cuda.baselines.library import Unavailable

START: LtConfiguration = dict.fromkeys(ATTRIBUTES, 0) | {"ID": 66, "SPLITK_NUM": 1}


class Library:
    """Tiles 0 to 9 and stages 0 to 4; it refuses custom options. Tile 7 with 4 splits reduced in place is the fastest."""

    def capability(self, algorithm_id: int, name: str) -> list[int]:
        assert algorithm_id == 66
        return list(range({"TILE_IDS": 10, "STAGES_IDS": 5}[name]))


def time_us(_product: Library, chosen: LtConfiguration) -> float:
    if chosen["CUSTOM_OPTION"]:
        raise Unavailable("refused")
    return 10.0 + abs(chosen["TILE_ID"] - 7) + abs(chosen["SPLITK_NUM"] - 4) + (chosen["REDUCTION_SCHEME"] > 1)


def test_the_search_finds_the_fastest_configuration_one_attribute_at_a_time() -> None:
    search = Descent(time_us, 60.0, random.Random(1))
    found = search.run([(Library(), START)])
    _, best, us = found[0]
    assert (best["TILE_ID"], best["SPLITK_NUM"], best["REDUCTION_SCHEME"], us) == (7, 4, 1, 10.0)
    assert search.tried == len(found) > 20
    assert [one[2] for one in found] == sorted(one[2] for one in found)


def test_without_time_only_the_start_is_timed() -> None:
    search = Descent(time_us, 0.0, random.Random(1))
    ((_, best, _),) = search.run([(Library(), START), (Library(), {**START, "TILE_ID": 7})])
    assert (best, search.tried) == (START, 1)


def test_a_library_that_refuses_all_is_told() -> None:
    with pytest.raises(Unavailable, match="no configuration"):
        Descent(time_us, 1.0, random.Random(1)).run([(Library(), {**START, "CUSTOM_OPTION": 1})])


def test_neighbours_differ_in_one_attribute_and_splits_have_a_reduction() -> None:
    for other in neighbours(START, Library(), random.Random(2)):
        changed = {name for name in ATTRIBUTES if other[name] != START[name]}
        assert len(changed - {"REDUCTION_SCHEME"}) <= 1
        assert (other["SPLITK_NUM"] > 1) == (other["REDUCTION_SCHEME"] > 0)
