"""The agent: drives a run over the parts that its sibling packages offer.

Rooms, each of which may import the ones before it:
`observe/`: what a policy sees before a round. `run/`: the graph of a run and its nodes, from the first round to the result.
`report/`: what a person reads of a run. `index/`: the knowledge base, filled and opened.
`wiring/`: the real parts, opened as the settings say. `campaign/`: runs over many shapes, with their figures and page.
`library/`: kernel libraries from them, and what a model would gain by one. `learning/environment/`: the sandbox as an
environment of reinforcement learning. `bench/`: benches for models and for proposals. `learning/calibration/`: a new GPU.
`cli/`: the command `cudal2-agent`, one file per verb.
"""
