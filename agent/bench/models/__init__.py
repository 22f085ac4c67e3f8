"""A bench for models: ten fixed tasks, each a short run of the chat policy, and figures by which models are compared.

- `tasks.json`, `bench_tasks`: the tasks, and how they are chosen.
- `bench_runs`: the runs of a bench, in the store, so that a killed one resumes; each ends with its first right kernel.
- `yardstick`: what the schedule policy reaches on a task.
- `bench_figures`: the figures of a task and of a bench, from the records of its runs.
"""
