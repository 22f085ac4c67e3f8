"""`cudal2-agent calibrate`: a GPU that nobody has measured, in minutes.

`calibration`: from an open store and sandbox to what was adopted. `spread_schedules`: which shapes are measured, in which
order, and which are held back, as `shapes.json` lists them; and which schedules of a shape. `calibration_runs`: measures a
shape as an ordinary run of the store, and reads such runs. `adaptation`: fits the chip's rates, trains the policy on, judges
both on what was held back, and reports it. `calibration_session`: opens the parts.
"""
