"""The sweep form: steps as small as they can travel, and still whole kernels.

- `sweep_lines.py`: the lines of a file, as records.
- `sweep_steps.py`: what the form holds of a step; a step to its line and back.
- `sweep_files.py`: writes files, in pieces where wanted.
- `sweep_reading.py`: reads one file.
"""
