"""Judges the timing model by kernels that were timed on a GPU: random schedules of shapes apart, and free sources.

| in `sets/` | what is in it |
|---|---|
| `shapes.json` | the shapes that the model is judged by, never calibrated on |
| `fresh_shapes*.json` | further ones, which `fresh` chooses, by which a change is judged |
| `fit/shapes*.json` | shapes that the model is fitted to |
| `store_shapes.json` | shapes of a store whose steps are judged, and never fitted to |
| `sources.json` | free sources |
| `drawn*`, also in `fit` | random schedules of such a list, which `draw` draws |

`measure`: times drawn schedules, or free sources, on a GPU, one row a line. `judge`: predictions against such rows, or against
a store's steps. `screening`: what a search loses by leaving out what is
predicted far behind. `calibrate`: fits the rates of `sandbox/timing_model/rates.py` to a store's steps. `fit_correction`: fits
`sandbox/timing_model/correction.npz` to timed schedules.
"""
