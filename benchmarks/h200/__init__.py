"""The 1,000 shapes on an H200: what is held out of every tuning, and what was measured.

`grid.py`: the shapes of the grid, and those that are held out. `held_out.json`: the list, drawn once and never drawn again.
"""
