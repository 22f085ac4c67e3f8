"""Calls as steps and exchanges of a run: what each tool says, what is recorded, and what a resumed run still knows."""

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cudal2_agent.agent.mcp.known_winners import KnownWinner
from cudal2_agent.contract.records.evaluation import Evaluation, TestResult, Wrong
from tests.agent.mcp.driving import CLIENT, Driven, SlowSandbox, kernel, stored
from tests.doubles import INSPECTION, ScriptedSandbox

PATCH = "@@\n-__global__ void gemm() {}\n+__global__ void gemm() { /* faster */ }\n"


def test_a_kernel_that_is_handed_in_is_a_step_with_its_time_its_counters_and_its_place(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0, 2: 4.0}))
    with at.running():
        timed = at.call("time_kernel", kernel=kernel(1), idea="All operands at once.")
        again = at.call("submit_kernel", kernel="k1")
        second = at.call("profile_kernel", kernel=kernel(2), idea="Half the registers [K1].")
    assert "k1: it passed all tests on the GPU and was timed." in timed.text
    assert "measured: 5.00 us" in timed.text
    assert "the kernel's speedup 2.000" in timed.text
    assert "It is the best kernel of the run." in again.text
    assert "basis: from hardware counters" in again.text
    assert "counters of gemm: duration_ns=4000" in second.text
    steps, exchanges = stored(at)
    assert [(one.round, one.candidate.origin.policy, one.candidate.origin.note) for one in steps] == [
        (1, "mcp", "All operands at once."),
        (2, "mcp", "Half the registers [K1]."),
    ]
    assert all(one.profile and one.reward is not None for one in steps)
    assert at.sandbox.evaluated == [(1, "quick"), (2, "quick")]  # a second call with the same kernel repeats nothing
    assert [one.place for one in exchanges] == [(1, 0, 0), (2, 0, 0), (2, 0, 1)]
    assert [one.candidate_ids for one in exchanges] == [(steps[0].candidate.id,), (), (steps[1].candidate.id,)]
    assert steps[0].candidate.origin.prompt_hash == exchanges[0].prompt.id
    assert [one.model for one in exchanges] == [CLIENT] * 3
    assert [result.text for one in exchanges for result in one.results] == [timed.text, again.text, second.text]


def test_an_idea_cites_the_notes_of_the_task_by_their_marks(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}))
    with at.running():
        task = at.call("read_task").text
        mark = task.partition(" from builtin x.md")[0].rpartition("[")[2]
        at.call("submit_kernel", kernel=kernel(1), idea=f"As in [{mark}.")
        at.call("submit_kernel", kernel=kernel(2), idea="My own.")
    steps, exchanges = stored(at)
    assert len(exchanges[1].shown) == 1
    assert [one.cited for one in exchanges] == [(), exchanges[1].shown, ()]
    assert steps[0].candidate.origin.chunk_ids == exchanges[1].shown


def test_tools_that_try_a_kernel_make_no_step(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}, failures=(3,)))
    with at.running():
        said = [at.call(name, kernel=kernel(1)).text for name in ("compile_kernel", "verify_kernel", "predict_time")]
        broken = at.call("compile_kernel", kernel=kernel(3))
        found = at.call("search_knowledge", question="wgmma")
    assert said[0].startswith("k1: it compiles; it was not run.")
    assert said[1].startswith("k1: it passed all tests on the emulator.")
    assert "predicted 5.00 us" in said[2]
    assert broken.text.startswith("k2: it failed.")
    assert "read me" in found.text
    steps, exchanges = stored(at)
    assert steps == []
    assert [one.problem for one in exchanges] == [
        f"tools were called: {one}"
        for one in ("compile_kernel", "verify_kernel", "predict_time", "compile_kernel", "search_knowledge")
    ]


def test_without_a_gpu_nothing_is_timed_and_a_kernel_is_handed_in_all_the_same(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}, emulates=True))
    with at.running():
        timed, profiled = at.call("time_kernel", kernel=kernel(1)), at.call("profile_kernel", kernel="k1")
        handed = at.call("submit_kernel", kernel="k1")
    assert "nothing is measured here" in timed.text
    assert "nothing is measured here" in profiled.text
    assert "verified by the emulator" in handed.text
    assert "It is the best kernel of the run." in handed.text
    steps, exchanges = stored(at)
    assert [one.evaluation.status for one in steps] == ["unmeasured"]
    assert [one.candidate_ids for one in exchanges] == [(), (), (steps[0].candidate.id,)]


def test_a_wrong_kernel_is_a_step_with_the_fault(tmp_path: Path) -> None:
    test = TestResult(tier="exact", name="zero-one", passed=False, message="12 of 64 outputs are wrong")
    at = Driven(tmp_path, ScriptedSandbox(outcomes={1: Wrong(test=test, tests=(test,), inspection=INSPECTION)}))
    with at.running():
        said = at.call("submit_kernel", kernel=kernel(1)).text
    assert said.startswith("k1: it failed.")
    assert "12 of 64 outputs are wrong" in said
    assert "No kernel of the run is right yet." in said
    assert [one.evaluation.status for one in stored(at)[0]] == ["wrong"]


def test_each_answer_ends_with_what_is_left_and_the_last_call_ends_the_search(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}), chat_tool_calls=3, budget=7, minutes=30.0)
    with at.running():
        first = at.call("submit_kernel", kernel=kernel(1)).text
        second = at.call("compile_kernel", kernel="k1").text
        at.call("compile_kernel", kernel="k1")
        late = at.call("compile_kernel", kernel="k1")
        finished = at.call("finish")
    assert first.endswith("Left: 2 of 3 calls, 29 minutes, 6 of 7 kernels.")  # a minute is kept for the final measurements
    assert "Left: 1 of 3 calls" in second
    assert late.wrong
    assert "the cap on calls is reached" in finished.text
    assert at.result.run.status == "finished"
    assert [(number, effort) for number, effort in at.sandbox.evaluated] == [(1, "quick"), (1, "race")]
    assert len(stored(at)[1]) == 3


def test_the_last_kernel_of_the_budget_ends_the_search(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}), budget=1)
    with at.running():
        assert "k1: it passed all tests" in at.call("submit_kernel", kernel=kernel(1)).text
        assert at.call("compile_kernel", kernel=kernel(2)).text == "over: the budget of 1 candidates is spent"
    assert at.result.best.candidate.source == kernel(1)


def test_time_that_is_spent_ends_the_search_while_nobody_calls(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox(), minutes=0.01)
    with at.running():
        deadline = time.monotonic() + 20
        while at.session.desk.ended is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert at.call("submit_kernel", kernel=kernel(1)).text == "over: the time is spent"


def test_finish_measures_once_more_and_ends_the_run(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0, 2: 4.0}))
    with at.running():
        at.call("submit_kernel", kernel=kernel(1))
        at.call("submit_kernel", kernel=kernel(2))
        assert at.call("finish").text == "over: the agent finished"
        late = at.call("submit_kernel", kernel=kernel(3))
    assert (late.text, late.wrong) == ("over: the agent finished", True)
    assert at.result.best.candidate.source == kernel(2)
    assert at.result.best.evaluation.effort == "race"


def test_an_agent_that_leaves_interrupts_the_run_and_a_resumed_one_knows_its_kernels_and_its_calls(tmp_path: Path) -> None:
    known = (KnownWinner("// winner\n" + kernel(9), "256x256x256, of library x"),)
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}), known, chat_tool_calls=9)
    with at.running():
        at.call("read_task")
        at.call("submit_kernel", kernel=kernel(1))
        at.call("best_known")
        at.call("show_kernel", kernel="b1")
        patched = at.call("compile_kernel", kernel="k1", patch=PATCH)
    assert at.result.run.status == "interrupted"
    assert patched.text.startswith("k2: it compiles")
    again = Driven(tmp_path, ScriptedSandbox({1: 5.0}), known, chat_tool_calls=9)
    with again.running(resumed=True):
        shown = [again.call("show_kernel", kernel=name).text for name in ("k2", "b1")]
        handed = again.call("submit_kernel", kernel="k1")
    assert "/* faster */" in shown[0]
    assert "// winner" in shown[1]
    assert "It is the best kernel of the run." in handed.text
    assert "Left: 1 of 9 calls" in handed.text
    assert again.sandbox.evaluated == []
    _, exchanges = stored(again)
    assert [call.id for one in exchanges for call in one.calls] == [f"call_{number}" for number in range(1, 9)]
    assert exchanges[-1].prompt.messages[1].content.startswith("You are an expert in CUDA kernels")


def test_a_patch_has_the_kernel_that_it_changes_as_its_parent(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}))
    with at.running():
        at.call("submit_kernel", kernel=kernel(1))
        at.call("submit_kernel", kernel="k1", patch=PATCH)
        wrong = at.call("submit_kernel", kernel="k1", patch="@@\n-no such line\n+x\n")
    steps, _ = stored(at)
    assert steps[1].candidate.origin.parents == (steps[0].candidate.id,)
    assert "/* faster */" in steps[1].candidate.source
    assert wrong.wrong
    assert "hunk 1" in wrong.text
    assert len(steps) == 2


def test_the_prompt_of_a_call_is_what_the_agent_was_told_within_the_limit_of_a_prompt(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}), chat_prompt_tokens=9000)
    with at.running():
        at.call("compile_kernel", kernel=kernel(1))
        task = at.call("read_task")
        for number in range(30):
            at.call("compile_kernel", kernel=kernel(2, f"// {number}" + "x" * 2000))
    _, exchanges = stored(at)
    first, last = exchanges[0].prompt.messages, exchanges[-1].prompt.messages
    assert [message.role for message in first] == ["system", "user"]
    assert first[1].content.startswith("D = A·B at 256x256x256")
    assert last[1].content == task.text
    assert [message.role for message in last[2:]] == ["assistant", "tool"] * ((len(last) - 2) // 2)
    assert last[-1].content == exchanges[-2].results[0].text
    assert 2 < len(last) < 30
    assert sum(len(message.content) for message in last[2:]) < 9000 * 3.2


def test_a_call_that_takes_too_long_says_so_and_the_next_one_has_the_outcome(tmp_path: Path) -> None:
    at = Driven(tmp_path, SlowSandbox(), chat_tool_s=0.3)
    with at.running():
        at.call("read_task")
        slow = at.call("submit_kernel", kernel=kernel(1))
        beside = at.call("verify_kernel", kernel=kernel(2))
        at.sandbox.go.set()
        deadline = time.monotonic() + 20
        while "goes on" in (later := at.call("submit_kernel", kernel="k1").text) and time.monotonic() < deadline:
            pass
    assert slow.text.startswith("k1: its evaluation goes on; call submit_kernel with k1 again")
    assert "cannot be used: the run is evaluating a kernel that was handed in; call again" in beside.text
    assert "k1: it passed all tests" in later
    steps, exchanges = stored(at)
    assert [one.candidate.source for one in steps] == [kernel(1)]
    assert [one.candidate_ids for one in exchanges if one.candidate_ids] == [(steps[0].candidate.id,)]


def test_a_kill_within_an_evaluation_costs_no_candidate_and_leaves_the_store_whole(tmp_path: Path) -> None:
    class Killed(ScriptedSandbox):
        def evaluate(self, *_: Any) -> Evaluation:
            raise KeyboardInterrupt

    at = Driven(tmp_path, Killed())
    with at.running():
        at.call("submit_kernel", kernel=kernel(1))
    assert at.result.run.status == "interrupted"
    steps, [exchange] = stored(at)
    assert (steps, len(exchange.candidate_ids)) == ([], 1)
    again = Driven(tmp_path, ScriptedSandbox({1: 5.0}))
    with again.running(resumed=True):
        assert "k1: it passed all tests" in again.call("submit_kernel", kernel="k1").text
    steps, _ = stored(again)
    assert [one.candidate.id for one in steps] == list(exchange.candidate_ids)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("no_such_tool", {}, "there is no tool 'no_such_tool'; the tools are read_task, compile_kernel"),
        ("submit_kernel", {}, "have no text 'kernel'"),
        ("submit_kernel", {"kernel": 7}, "have no text 'kernel'"),
        ("submit_kernel", {"kernel": ["k1"]}, "have no text 'kernel'"),
        ("submit_kernel", [1, 2], "have no text 'kernel'"),
        ("submit_kernel", None, "have no text 'kernel'"),
        ("submit_kernel", {"kernel": "k1"}, "there is no kernel 'k1'; known kernels: none yet"),
        ("submit_kernel", {"kernel": kernel(1), "patch": 3}, "'patch' is no text"),
        ("submit_kernel", {"kernel": kernel(1), "patch": "rm -rf /"}, "begins with neither"),
        ("submit_kernel", {"kernel": "/etc/passwd"}, "launch plan"),
        ("submit_kernel", {"kernel": "../../secret.cu"}, "launch plan"),
        ("submit_kernel", {"kernel": "x " * 200_000}, "more than 262144 characters"),
        ("submit_kernel", {"kernel": "x" * 3_000_000}, "are not JSON"),
        ("show_kernel", {"kernel": "\0"}, "\N{REPLACEMENT CHARACTER}"),
        ("compile_kernel", {"kernel": kernel(1, "\ud800 \0 \u202e")}, "it compiles"),
        ("search_knowledge", {"question": "\ud800\0"}, "read me"),
        ("\ud800\0\x1b[31m", {"kernel": "k1"}, "there is no tool"),
    ],
)
def test_hostile_calls_are_answered_and_recorded_and_the_run_goes_on(tmp_path: Path, name: str, given: Any, says: str) -> None:
    at = Driven(tmp_path, ScriptedSandbox({1: 5.0}))
    with at.running() as session:
        said = session.call(name, given, CLIENT)
        assert "k" in at.call("submit_kernel", kernel=kernel(5)).text
    assert says in said.text
    assert len(said.text) < 20_000
    steps, exchanges = stored(at)
    assert [one.candidate.source for one in steps] == [kernel(5)]
    assert exchanges[0].results[0].text == said.text
    assert all(len(call.arguments) < 600_000 for one in exchanges for call in one.calls)


def test_calls_from_many_threads_are_run_one_after_the_other(tmp_path: Path) -> None:
    at = Driven(tmp_path, ScriptedSandbox(dict.fromkeys(range(8), 5.0)))
    said: list[str] = []
    with at.running():
        threads = [
            threading.Thread(target=lambda number=number: said.append(at.call("submit_kernel", kernel=kernel(number)).text))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    steps, exchanges = stored(at)
    assert len(said) == len(steps) == len(exchanges) == 8
    assert [one.candidate_ids for one in exchanges] == [(one.candidate.id,) for one in steps]
    assert len({call.id for one in exchanges for call in one.calls}) == 8
