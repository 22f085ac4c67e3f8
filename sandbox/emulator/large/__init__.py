"""What is run of a task that is too large to be run whole.

`coverage`: the reduced task. `sample`: the sample at full size, with `points` (which clusters), `places` (which parts of D),
`producers` (the clusters of earlier launches that they need), `lines` (the inputs) and `expectation` (their reference).
"""
