"""A language model that names schedules: its data, its training in three stages, and the policy that samples it.

Needs the extra `lm`; only this folder imports transformers, trl, peft and accelerate for it. docs/training/language_model.md

- `needs.py`: says what is not installed.
- `compact_prompt.py`: the prompt and the reply.
- `axes_version.py`: the fingerprint of the families' axes, which an adapter is bound to.
- `stored_searches.py`, `examples.py`: from the store to the examples of a stage.
- `base_model.py`, `adapter_folder.py`: loads a model, and writes and reads a trained adapter.
- `reply_reading.py`, `reply_readers.py`: a reply to a candidate, here or in processes that have the spaces of tasks ready.
- `reply_reward.py`, `step_seconds.py`: from replies to the rewards of group-relative optimisation, and where the time goes.
- `stages/`: the training of a stage.
- `reply_sampler.py`, `proposal_worth.py`, `policy.py`: replies, what they are worth, and the policy `lm`.
"""
