"""Modules measured on this GPU: kernels written by hand and the fuser's first ones, beside every baseline of PyTorch.

    python -m benchmarks.modules --out FILE [--problems FOLDER_OR_FILE...] [--seconds 300]

One JSON line a task: times of the candidate and of all baselines, tests, what was drawn, notes, seconds of each stage. Tasks
whose problem file is named are traced in the jail, or read from a `.json` that holds a traced task.
"""
