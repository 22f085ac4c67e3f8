"""Which policy proposes best: for each task all arms propose, and what they propose is measured together.

- `arms`: the policies that are compared, by name or by file of weights, and the arm without knowledge.
- `bench_shapes`: the tasks. `bench_session`: measures those that have no row yet, in a sandbox that it opens.
- `one_task`: what becomes of the proposals for a task.
- `proposal_rows`: the row of a task, and files of rows. `proposal_figures`: figures of rows; `search_cost`: those of
  searches; `estimates`: means over shapes with their intervals.
"""
