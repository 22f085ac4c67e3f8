"""What is run of a task that is too large to be run whole.

| file | what is in it |
|---|---|
| `coverage.py` | the reduced task, and which tasks are run whole |
| `sample.py` | the sample at full size |
| `points.py` | the clusters of a sample; the parts of D that they are to touch; what was run and compared |
| `producers.py` | the clusters of earlier launches that a sample needs |
| `expectation.py` | its inputs and their reference |
"""
