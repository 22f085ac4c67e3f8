"""A stage of training.

- `stage_settings.py`: what a stage is told; kept beside its checkpoints and in the adapter.
- `stages.py`: begins, trains and finishes a stage.
- `guarded_training.py`: whole checkpoints, a stop where a number is none, the log.
"""
