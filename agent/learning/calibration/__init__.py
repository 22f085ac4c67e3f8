"""`cudal2-agent calibrate`: a GPU that nobody has measured, in minutes.

`calibration`: from an open store and sandbox to what was adopted. `calibration_tasks`: which shapes are measured, in which
order, and which are held back; `shapes.json` lists them. `spread_schedules`: which schedules of a shape. `calibration_runs`:
measures a shape as an ordinary run of the store, and reads such runs. `adaptation`: fits the chip's rates, trains the policy
on, and judges both on what was held back. `calibration_result`: what it reports. `calibration_session`: opens the parts.
"""
