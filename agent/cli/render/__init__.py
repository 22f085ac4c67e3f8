"""Records as text for a terminal.

`run_answer`: a run's answer. `file_answer`: the answer of `verify` and `bench`. `profile_answer`: the answer of `profile`.
`progress`: events as lines and a status line on stderr. `meter`: rate and time left of indexing.
"""
