"""Tools for other agents: a Model Context Protocol server whose calls are a run.

`handed_in`: the policy of such a run, which proposes what the agent hands in. `run_tools`: the tools over the run.
`agent_tools`: as they are offered. `known_winners`: the best kernels of library and store for the task and near it.
`agent_calls`: the calls in order, each an exchange of the run, and what is left of its limits. `protocol_server`: the protocol,
by the official SDK.
"""
