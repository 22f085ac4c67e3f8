"""From a problem file to a task. The file's code runs in a jailed process only.

- `tracer.py`: the parent's side
- `trace_messages.py`: what it asks and what comes back
- `tracing_child.py`: the process, and the child that it forks for each file
- `deeds.py`: names what a file tried and may not do
- `problem.py`: a file as a module, at the sizes that are asked
- `tracing.py`: buffers and graph of a module
- `graph_export.py`: the graph, from torch.export
- `drawing.py`: how the problem makes its inputs and parameters
- `comparing.py`: the graph against the module, on values
- `reducing.py`: smaller sizes at which a problem still runs
- `simplifying.py`: the graph without copies
"""
