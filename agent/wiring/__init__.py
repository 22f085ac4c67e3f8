"""The real parts, opened as the settings say, and the machine that they are on.

`parts`: everything that a run needs. `sandbox`: the sandbox alone. `policy`: the author of candidates.
`schedule_prior`: what a search over schedules starts from, and how many candidates it tries where nobody says.
`modules`: what the sandbox needs of a task's kind. `chip_rates`: what `calibrate` fitted on a chip.
`gpus`: the GPUs that this process sees. `doctor`: what this machine can do, and what is missing.
`run_workbench`: the tools of a chat policy. `host_use`: the processor time and memory that processes take.
`actors`: those of a Ray cluster. `remote`: links to workers elsewhere; `serving`: this machine as such a worker.
"""
