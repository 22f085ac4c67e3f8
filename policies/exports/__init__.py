"""Trajectories as training data (docs/guide/training.md).

- `dataset.py`: writes a data set in any format; the entry of the command line.
- `steps.py`: steps as JSON lines, with everything that is stored of them.
- `formats.py`, `contrastive.py`: the rows that trainers load. `columns.py`: their types. `flat_table.py`: the flat table.
- `samples.py`, `schedule_reply.py`: what was asked and answered in each step, and what it earned.
- `splits.py`, `counts.py`, `dataset_card.py`: splits by shape, counts, the card.
- `flashinfer/`: steps as a data set of flashinfer-bench.
"""
