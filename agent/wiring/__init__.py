"""The real parts, opened as the settings say.

`parts`: everything that a run needs. `sandbox`: the sandbox alone. `policy`: schedule, chat or portfolio.
`gpus`: the GPUs that this process sees. `doctor`: what this machine can do, and what is missing.
"""
