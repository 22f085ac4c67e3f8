"""The agent: drives a run over the parts that its sibling packages offer.

Rooms, each of which may import the ones before it:
`observe/`: what a policy sees before a round. `run/`: the graph of a run and its nodes, from the first round to the result.
`report/`: what a person reads of a run. `index/`: the knowledge base, filled and opened.
`wiring/`: the real parts, opened as the settings say. `campaign/`: runs over many shapes.
`campaign_report/`: their figures and page. `library/`: kernel libraries from them.
`model_bench/`: a bench for models. `policy_bench/`: a bench for policies.
`cli/`: the command `cudal2-agent`, one file per verb.
"""
