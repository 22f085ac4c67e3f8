"""Another agent's calls on a GPU: real times, counters where they can be read, the final."""

import threading
from pathlib import Path

import pytest

from cudal2_agent.agent.cli.agents.agent_host import host_new
from cudal2_agent.agent.mcp.agent_calls import AgentCalls, Door
from cudal2_agent.agent.mcp.handed_in import HandedIn
from cudal2_agent.agent.wiring.gpus import default_arch
from cudal2_agent.contract.records.evaluation import Measured
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.settings.settings import load_settings
from cudal2_agent.store.store import open_store
from tests.agent.bench.models.scripted_model import example, shifted

pytestmark = pytest.mark.gpu


def test_a_kernel_is_timed_profiled_and_raced(tmp_path: Path) -> None:
    settings = load_settings(home=tmp_path, use_knowledge=False, minutes=8.0, chat_tool_s=300.0)
    task = GemmTask(m=256, n=256, k=256, arch=default_arch("auto"))
    calls, said = AgentCalls(HandedIn()), dict[str, str]()

    def agent() -> None:
        for name, given in (
            ("read_task", {}),
            ("verify_kernel", {"kernel": shifted(example(task))}),
            ("time_kernel", {"kernel": example(task), "idea": "The example."}),
            ("profile_kernel", {"kernel": "k2"}),
            ("submit_kernel", {"kernel": "k2"}),
            ("best_known", {}),
            ("finish", {}),
        ):
            said[name] = calls.call(name, given, "test 1.0").text
        calls.desk.leave()

    thread = threading.Thread(target=agent, daemon=True)
    thread.start()
    code = host_new(Door(calls, thread), lambda _: task, settings, None, as_json=False)
    assert code == 0, said
    assert "wrong result" in said["verify_kernel"]
    assert "it passed all tests on the GPU and was timed." in said["time_kernel"]
    assert "cublaslt-autotuning" in said["time_kernel"].lower()
    assert "counters of" in said["profile_kernel"] or "no hardware counters were read" in said["profile_kernel"]
    assert "It is the best kernel of the run" in said["submit_kernel"]
    assert "us measured" in said["best_known"]
    with open_store(settings.store_url) as store:
        [run] = store.runs()
        steps = store.steps(run.run_id)
    assert run.status == "finished"
    efforts = [one.evaluation.effort for one in steps if isinstance(one.evaluation, Measured)]
    assert efforts == ["quick", "race"]
