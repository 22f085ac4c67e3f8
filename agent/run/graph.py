"""The graph of a run.

retrieve → propose → build → (evaluate → diagnose → record)* → witness → profile → … → choose → final measurements.
The emulator and the profiler take seconds per candidate, so that they run at the end of a round and not for each candidate.
"""

from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from agent.run.nodes import Nodes
from agent.run.state import RunState

Graph = CompiledStateGraph[RunState, None, RunState, RunState]


def compile_graph(nodes: Nodes, checkpointer: BaseCheckpointSaver[Any] | None) -> Graph:
    """The graph over bound nodes, with every edge of the loop."""
    graph = StateGraph(RunState)
    stages = (nodes.retrieve, nodes.propose, nodes.build, nodes.evaluate, nodes.diagnose, nodes.record)
    for node in (*stages, nodes.witness, nodes.profile, nodes.choose):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "propose")
    graph.add_conditional_edges("propose", after_propose)
    graph.add_conditional_edges("build", after_step)
    graph.add_edge("evaluate", "diagnose")
    graph.add_edge("diagnose", "record")
    graph.add_conditional_edges("record", after_step)
    graph.add_edge("witness", "profile")
    graph.add_conditional_edges("profile", after_profile)
    graph.add_conditional_edges("choose", after_choose)
    return graph.compile(checkpointer=checkpointer)


def after_propose(state: RunState) -> Literal["build", "choose"]:
    return "choose" if state["stop"] else "build"


def after_step(state: RunState) -> Literal["evaluate", "witness"]:
    """On to the next candidate in the queue, or to the end of the round or of the search."""
    ended = state["phase"] == "search" and state["stop"]
    return "witness" if ended or not state["queue"] else "evaluate"


def after_profile(state: RunState) -> Literal["retrieve", "choose", "__end__"]:
    if state["phase"] == "final":
        return "__end__"
    return "choose" if state["stop"] else "retrieve"


def after_choose(state: RunState) -> Literal["evaluate", "__end__"]:
    return "evaluate" if state["queue"] else "__end__"
