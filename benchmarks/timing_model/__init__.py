"""Judges the timing model by kernels that were timed on a GPU: random schedules of shapes apart, and free sources.

`shapes.json`: the shapes, never calibrated on. `draw`: random schedules of them, to `drawn.json`. `measure`: times those, or
the free sources that `sources.json` lists, on a GPU, one row a line. `judge`: predictions against such rows, or against a
store's steps of `store_shapes.json`. `ceiling`: how well times can be ranked at all. `screening`: what a search loses by
leaving out what is predicted far behind. `calibrate`: fits the rates of `sandbox/timing_model/rates.py` to a store's steps.
"""
