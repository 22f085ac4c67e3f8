"""The campaigns for what is missing."""

from pathlib import Path

import pytest

from cudal2_agent.agent.campaign.shapes import read_shapes
from cudal2_agent.agent.library.advise.search_plan import GPU_S_PER_SHAPE, plan_searches
from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.records.task import Layout
from tests.agent.library.advise.test_advice import advice, library, task
from tests.agent.library.advise.test_products import product


@pytest.fixture(autouse=True)
def _predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cudal2_agent.agent.library.advise.library_times._predicted_us", lambda _task, _chip: 1.0)


def test_missing_products_become_a_file_that_a_campaign_reads(tmp_path: Path) -> None:
    """Each shape and layout once, whatever part it is of; nothing that is served or that no library computes."""
    products = {
        product(): 1,
        product(layout="tn"): 2,
        product(layout="tn", part="dX"): 3,
        product(n=32): 4,
        product(operator="addmm"): 5,
    }
    file = tmp_path / "missing.json"
    (plan,) = plan_searches(advice(products, library({task(): 1.3})), file, write=True)
    shapes, notices = read_shapes([str(file)])
    assert {(one.m, one.n, one.k, one.layout, one.weight) for one in shapes} == {
        (4, 16, 8, Layout.TN, 5),
        (4, 32, 8, Layout.NN, 4),
    }
    assert notices == []
    assert (plan.shapes, plan.gpu_s) == (2, 2 * GPU_S_PER_SHAPE)
    assert plan.command == f"cudal2-agent campaign run --shapes {file} --element f16 --budget 32 --name missing"
    assert plan.tuning == f"cudal2-agent library tune --shapes {file} --element f16 --out missing-tuned.jsonl.gz"


def test_each_element_type_is_a_campaign_of_its_own(tmp_path: Path) -> None:
    found = advice({product(): 1, product(element="bf16"): 1}, library({}))
    plans = plan_searches(found, tmp_path / "missing.json", write=True)
    assert [plan.element for plan in plans] == ["bf16", "f16"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["missing-bf16.json", "missing-f16.json"]


def test_nothing_is_written_without_a_wish_or_a_need(tmp_path: Path) -> None:
    file = tmp_path / "missing.json"
    assert plan_searches(advice({product(): 1}, library({})), file, write=False)
    assert plan_searches(advice({product(): 1}, library({task(): 1.3})), file, write=True) == ()
    in_vain = library({})._replace(no_faster=frozenset({"4x16x8 nn f16/f32"}))
    assert plan_searches(advice({product(): 1}, in_vain), file, write=True) == ()
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_is_not_writable_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        plan_searches(advice({product(): 1}, library({})), tmp_path / "absent" / "missing.json", write=True)
