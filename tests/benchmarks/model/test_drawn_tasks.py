"""The tasks of the comparison of a model with the search are those that the committed rule draws."""

from benchmarks.model.drawn_tasks import drawn, tasks
from cudal2_agent.contract.records.task import GemmTask


def test_the_committed_tasks_are_those_of_the_rule():
    assert tasks() == drawn()


def test_the_groups_are_what_the_rule_says():
    found = tasks()
    assert [len(set(found[group])) for group in ("weak", "unaligned", "modules")] == [12, 6, 6]
    assert set(found["ablated"]) <= {one for group in ("weak", "unaligned", "modules") for one in found[group]}
    for shape, layout in (words.split() for words in found["unaligned"]):
        m, n, k = map(int, shape.split("x"))
        task = GemmTask(m=m, n=n, k=k, layout=layout)
        assert task.n * 2 % 16, "rows of D are unaligned in every layout"
        assert task.k * 2 % 16
