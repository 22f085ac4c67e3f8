"""The graph of a run.

retrieve → propose → build → evaluate → witness → profile → … → choose → race → witness → profile.
A round is evaluated in one node, which records each candidate as it is measured. The emulator and the profiler take seconds
per candidate, so that they run at the end of a round and not for each candidate.
"""

from typing import Any, Literal

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.state import CompiledStateGraph

from cudal2_agent.agent.run.nodes import Nodes
from cudal2_agent.agent.run.state import RunState

Graph = CompiledStateGraph[RunState, None, RunState, RunState]


def compile_graph(nodes: Nodes, checkpointer: BaseCheckpointSaver[Any] | None) -> Graph:
    """The graph over bound nodes, with every edge of the loop."""
    graph = StateGraph(RunState)
    stages = (nodes.retrieve, nodes.propose, nodes.build, nodes.evaluate)
    for node in (*stages, nodes.witness, nodes.profile, nodes.choose, nodes.race):
        graph.add_node(node.__name__, node)
    graph.add_edge(START, "retrieve")
    graph.add_edge("retrieve", "propose")
    graph.add_conditional_edges("propose", after_propose)
    graph.add_edge("build", "evaluate")
    graph.add_edge("evaluate", "witness")
    graph.add_edge("witness", "profile")
    graph.add_conditional_edges("profile", after_profile)
    graph.add_conditional_edges("choose", after_choose)
    graph.add_edge("race", "witness")
    return graph.compile(checkpointer=checkpointer)


def after_propose(state: RunState) -> Literal["build", "choose"]:
    return "choose" if state["stop"] else "build"


def after_profile(state: RunState) -> Literal["retrieve", "choose", "__end__"]:
    if state["phase"] == "final":
        return "__end__"
    return "choose" if state["stop"] else "retrieve"


def after_choose(state: RunState) -> Literal["race", "__end__"]:
    return "race" if state["batch"] else "__end__"
