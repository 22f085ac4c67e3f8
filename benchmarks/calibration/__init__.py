"""How fast a policy that learned from offline runs adapts to server mode, by replay of stored runs. Needs no GPU.

`merged_runs`: the runs of a shape as one. `__main__`: the study, which docs/training/calibration.md tells of.
"""
