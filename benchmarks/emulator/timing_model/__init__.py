"""Judges the timing model by kernels that were timed on a GPU: random schedules of shapes apart, and free sources.

| in `sets/` | what is in it |
|---|---|
| `drawn.json.gz` | random schedules of the shapes that the model is judged by, never calibrated on |
| `drawn_fresh*.json.gz` | those of further shapes, by which a change is judged |
| `fit/drawn*.json.gz` | those of shapes that the model is fitted to |
| `store_shapes.json` | shapes of a store whose steps are judged, and never fitted to |
| `sources.json` | free sources |

`fresh`: chooses shapes. `draw`: draws schedules of these.

`measure`: times drawn schedules, or free sources, on a GPU, one row a line. `judge`: predictions against such rows, or against
a store's steps. `calibrate`: fits the rates of `sandbox/timing_model/rates.py` to a store's steps. `fit_correction`: fits
`sandbox/timing_model/correction.npz` to timed schedules.
"""
