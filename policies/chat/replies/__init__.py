"""What a reply of a model holds, and the candidates that it gives.

- `fenced_blocks.py`: the prose and the fenced blocks of a reply.
- `forms.py`: which form a reply has: a whole file, a patch or schedules.
- `patch.py`: hunks against a kernel that the prompt shows, applied strictly.
- `schedule_json.py`: schedules as JSON; `named_axes.py`: those of a module's kernels.
- `candidates.py`: from what was read to candidates, or to the reason why there is none.
"""
