"""The border between the parts: records, settings, errors, events and protocols that the parts share.

This package imports pydantic and the standard library only. Every other package imports it.

The work:
- `base`: the base class of every record, and the hash that makes ids
- `task`: what a kernel computes, on which target, in which timing mode
- `candidate`: one kernel source with its launch plan, and its origin
- `plan`, `expression`: the launch plan, and its integer expressions
- `launching`: what all launchers share: parameters as bytes, edges between launches, zeroing
- `build`, `inspection`: a candidate that is ready to run, and the properties of its code

The outcome:
- `evaluation`: what became of a candidate
- `ruler`, `speedup`, `reward`: how a time was measured, the speedup, the reward
- `diagnosis`, `profile`: bottlenecks, and counters of Nsight Compute
- `exchange`, `trajectory`: a request to a chat server; runs, steps and observations

The surroundings:
- `chip`: limits and rates of the target architectures
- `knowledge`: records and protocols of the knowledge base
- `settings`, `options`: the resolved settings, and the slices that parts take
- `events`, `errors`: typed events, and the error tree
- `whole_file`: a file that appears whole or not at all
- `contrast`: contrastive exemplars, drawn from score buckets
- `protocols`: what the agent requires of a policy, a sandbox and a store
"""
