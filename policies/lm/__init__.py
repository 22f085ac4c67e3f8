"""A language model that names schedules: its data, its training in three stages, and the policy that samples it.

Needs the extra `lm`; only this folder imports transformers, trl, peft and accelerate for it. docs/guide/training.md

- `needs.py`: says what is not installed.
- `compact_prompt.py`: the prompt and the reply, and the fingerprint of the axes, which an adapter is bound to.
- `examples.py`: from the store to the examples of a stage.
- `base_model.py`, `adapter_folder.py`: loads a model, and writes and reads a trained adapter.
- `replies/`: replies sampled, read and rewarded.
- `stages.py`: begins, trains and finishes a stage of training. `stage_settings.py`: its settings, kept beside its checkpoints.
- `guarded_training.py`: whole checkpoints, a stop where a number is none, the log, and the order of prompts.
- `proposal_worth.py`, `policy.py`: what proposals are worth, and the policy `lm`.
"""
