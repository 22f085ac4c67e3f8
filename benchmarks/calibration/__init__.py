"""What a calibration is worth, by replay of stored runs. Needs no GPU; docs/training/calibration.md tells of it.

`__main__`: how fast a policy of offline runs adapts to server mode. `rates`: what a fit of rates finds, and what it does to
the order. `calibrated`: how fast it adapted to what `calibrate` measured on a GPU.
`adaptation_rows`: what both curves are made of. `merged_runs`: the runs of a shape as one.
"""
