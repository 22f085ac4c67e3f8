"""Experiments, and what made the constants and files that ship. The figures are in docs/results.

Run from the repository's root with `python -m benchmarks.ROOM.NAME`. A result names the command, commit, date and machine that
made it.

| room | question | needs a GPU |
|---|---|---|
| `harness.py` | what all scripts share: arguments, stamp, result file, tables | |
| `campaigns/` | data of the campaigns: rows, steps, held-out shapes | |
| `results/` | results of the other experiments, the newest of each | |
| `speed/` | how fast are the kernels on the 1,000 shapes, and what does a search cost? | no |
| `ruler/` | does the timer tell the truth? What does one launch leave to the next? | yes |
| `peers/` | how fast are other makers of kernels, in the same rounds? | yes |
| `modules/` | how fast are the kernels of KernelBench's tasks, and what do the tests of modules accept? | to measure |
| `model/` | what does a language model in the loop find that the search does not? The tasks, drawn by a rule | to measure |
| `library/` | what does a program gain in PyTorch, and what does a call cost? | yes |
| `proposals/` | who proposes the best schedules? Also makes the policy `h100` | to measure |
| `emulator/` | does the emulator agree with a GPU, what does it find, and how fast is it? With the timing model | in part |
| `retrieval/` | how good and how dear is search in the knowledge base? | no |
| `redteam/` | which hostile kernels does the sandbox reject? | for times |
"""
