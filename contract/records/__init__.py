"""The records that the parts exchange.

The work:
- `module_task`, `module_graph`, `named_buffer`: a PyTorch module, its operations by class, its buffers
- `task`: what a kernel computes, on which target, in which timing mode
- `candidate`: one kernel source with its launch plan, and its origin
- `build`, `inspection`: a candidate that is ready to run, and the properties of its code

The outcome:
- `evaluation`, `ruler`: what became of a candidate, and how a time was measured
- `baseline`: the tuned baseline of a task
- `diagnosis`, `profile`, `symptoms`: bottlenecks, counters of Nsight Compute, what a wrong result looks like
- `exchange`, `trajectory`: a request to a chat server; runs, steps and observations
- `campaign`, `module_campaign`, `library`: rows of many shapes and of many modules; entries of a kernel library
- `knowledge`: records and protocols of the knowledge base
"""
