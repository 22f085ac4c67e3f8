"""What a policy sees before a round. Everything here is pure, but for `near_entries`, which reads the shipped library.

`observation`: the observation of a round, put together, with earlier kernels for contrast. `attempts`: a step in short, with
its difference to its parent. `ranking`: which step leads, what ties with it, which are finalists.
`failures`: failed kernels that a model may repair.
`retrieval`: what is looked up in the knowledge base. `notes_of_source`: notes about what a failed source uses.
`near_entries`: the entries of the shipped library that are nearest to a task.
"""
