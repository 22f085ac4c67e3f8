"""The settings. `settings`: all of them, resolved. `run_settings`: those of a run. `options`: the slices that parts take."""
