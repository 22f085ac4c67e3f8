"""`cudal2-agent calibrate`. `calibrate_verb`: its flags, and its progress. `calibration_answer`: its result as text."""
