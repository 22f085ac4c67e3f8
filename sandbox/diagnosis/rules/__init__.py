"""Rules on counters: each module holds the rules on one matter, `counted.py` what they read."""
