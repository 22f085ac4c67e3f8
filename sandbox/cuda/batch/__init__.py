"""Many candidates of a task in one request: screened one after another, or raced against each other.

- `batch_evaluator.py`: what a worker does with a batch
- `screen_timer.py`: brief rounds of one candidate beside cuBLASLt-AutoTuning
- `race_timer.py`: rounds of all finalists together, with the baselines
- `elimination.py`: who stays in a race, from the samples alone
"""
