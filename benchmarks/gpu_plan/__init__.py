"""What the committed rows still lack, as campaigns that one command runs on the GPUs at hand.

| file | what is in it |
|---|---|
| `plan.py` | the campaigns of a chip: what no committed row has yet; reads files and starts nothing |
| `running.py` | starts them stage by stage within a time, and collects their rows and stores |

`python -m benchmarks.gpu_plan list --chip H200` says what is left and what it costs; `run` does it,
and goes on where it stopped.
"""
