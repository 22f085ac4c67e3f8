"""Experiments. Each committed result in `results/` names the command, commit, machine and date that made it.

Run from the repository's root with `python -m benchmarks.NAME`. The figures are in docs/results.md.

On a GPU:
- `optimize_shapes`: `optimize` over a list of shapes
- `ruler`: the timer's own test: a kernel against itself, and two versions of the timer
- `retention`: what one launch can leave to the next
- `redteam/`: hostile and unusual kernels against the sandbox (also on the emulator)
- `drawn_schedules`: kernels drawn from each family's whole space, none of which may be rejected
- `diagnosis/`: kernels with a known fault, and whether the diagnosis names it
- `steering/`: whether the diagnosis helps the schedule policy
- `proposals/`: which policy proposes the best schedules (its replay of stored sweeps needs no GPU)
- `strong_author`: recorded replies of a scripted author through the chat policy
- `sanitizer_corpus/`: seeded faults under compute-sanitizer
- `golden_opcodes/`: inputs and outputs of single instructions, recorded for the emulator's tests

On the emulator or without a device:
- `emulator_agreement`: verdicts of GPU and emulator on the same kernels
- `emulator_corpus`: seeded faults and right kernels under many schedules
- `emulator_speed`: time of tiles, products and `verify`
- `agent_overhead`: the agent's own time per step
- `retrieval/`: quality and cost of search in the knowledge base
- `pictures/`: the pictures of docs/, drawn from committed results
"""
