"""The 1,000 shapes on an H200: what is held out of every tuning, and what was measured.

| file | what is in it |
|---|---|
| `grid.py` | the shapes of the grid, and those that are held out |
| `held_out.json` | the held-out shapes, drawn once and never drawn again |
| `family_search.py` | kernel families against each other |
"""
