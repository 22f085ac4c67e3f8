"""Modules of the Python DSL are split at classes and functions."""

import pytest

from cudal2_agent.contract.records.knowledge import SplitFile
from cudal2_agent.indexer.split.split import split_file
from tests.indexer.split.coverage import lost, text_of

MODULE = (
    '''# Copyright (c) 2025 Nobody
# SPDX-License-Identifier: none

"""Rings of stages.

More on rings.
"""

import enum
from typing import Any

# How many stages a ring has.
STAGES = 4


@decorated(1)
@dsl.jit
def acquire(ring: Any) -> None:
    """Wait until a stage is free."""
    if ring.full:
        raise ValueError("the ring holds no free stage")
    return None


class Ring(enum.Enum):
    """A ring."""

    A = 1

    def turn(self) -> None:
        """Turn it."""


if True:

    def late() -> None:
        """Late."""
'''
    + "        x = 1\n" * 20
)


def split(text: str, path: str = "cute/ring.py") -> SplitFile:
    return split_file(path, text.encode())


def test_definitions_carry_module_class_and_kind() -> None:
    assert [(p.symbol, p.kind) for p in split(MODULE).pieces] == [
        ("cute/ring.py", "text"),
        ("cute.ring.STAGES", "variable"),
        ("cute.ring.acquire", "function"),
        ("cute.ring.Ring", "class"),
        ("cute.ring.late", "function"),
    ]


def test_decorators_and_comments_belong_to_what_follows() -> None:
    assert text_of(split(MODULE), "cute.ring.acquire").startswith("@decorated(1)\n@dsl.jit\n")
    assert text_of(split(MODULE), "cute.ring.STAGES").startswith("# How many")


def test_cards_say_docstrings_and_messages() -> None:
    cards = {p.symbol: p.card for p in split(MODULE).pieces}
    assert "Wait until a stage is free." in cards["cute.ring.acquire"]
    assert "the ring holds no free stage" in cards["cute.ring.acquire"]
    assert "Rings of stages." in cards["cute/ring.py"]
    assert "turn" in cards["cute.ring.Ring"]


def test_only_the_licence_is_lost() -> None:
    assert lost(split(MODULE)) == [1, 2]


def test_a_package_is_named_after_its_folder() -> None:
    assert split("def f():\n    pass\n", "cute/nvgpu/__init__.py").pieces[0].symbol == "cute.nvgpu.f"


def test_a_long_class_is_a_head_and_its_methods() -> None:
    methods = "\n".join(f"    def step_{n}(self):\n" + "        x = 1\n" * 30 for n in range(3))
    assert [p.symbol for p in split(f"class Ring:\n    size = 1\n\n{methods}", "r.py").pieces] == [
        "r.Ring",
        "r.Ring.step_0",
        "r.Ring.step_1",
        "r.Ring.step_2",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n    pass\n",
        "print 'old'\n",
        "x = 1\x00\n",
        "(" * 5000 + "\n",
        "if x:\n" + "\tpass\n        pass\n",
        "x = " + "-" * 100_000 + "1\n",
    ],
    ids=["unclosed", "python 2", "nul", "deep", "tabs and blanks", "deeper"],
)
def test_what_is_no_python_is_cut_as_text(text: str) -> None:
    found = split(text)
    assert not lost(found)
    assert {p.kind for p in found.pieces} == {"text"}


def test_an_empty_module() -> None:
    assert split("").pieces == ()
    assert split("\r\n\r\n").pieces == ()
