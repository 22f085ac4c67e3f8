"""Judges the timing model by kernels that were timed on a GPU: random schedules of shapes apart, and free sources.

`sets/shapes.json`: the shapes, never calibrated on. `fresh_shapes*.json`: further ones, which `fresh` chooses, by which a change
is judged. `fit_shapes*.json`: shapes that the model is fitted to. `draw`: random schedules of such a list, to a file. `measure`:
times those, or the free sources that `sources.json` lists, on a GPU, one row a line. `judge`: predictions against such rows, or
against a store's steps of `store_shapes.json`. `ceiling`: how well times can be ranked at all. `screening`: what a search loses
by leaving out what is predicted far behind. `calibrate`: fits the rates of `sandbox/timing_model/rates.py` to a store's steps.
`fit_correction`: fits `sandbox/timing_model/correction.json` by `boosting`.
"""
