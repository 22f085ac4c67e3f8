"""What is run of a task that is too large to be run whole.

| file | what is in it |
|---|---|
| `coverage.py` | the reduced task, and which tasks are run whole |
| `sample.py`, `tally.py` | the sample at full size; what it has run and compared |
| `points.py`, `places.py` | the clusters of a sample; the parts of D that they are to touch |
| `producers.py` | the clusters of earlier launches that a sample needs |
| `operand_lines.py`, `expectation.py` | its inputs and their reference |
"""
