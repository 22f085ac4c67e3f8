"""The 1,000 shapes on an H200: what is held out of every tuning, and what was measured.

| file | what is in it |
|---|---|
| `grid.py`, `held_out.json` | the shapes of the grid, and those that are held out; drawn once and never drawn again |
| `rows/` | what campaigns measured, one row per shape and mode |
| `steps/` | every candidate of these campaigns, for `trajectories import` |
| `h100_rows/` | rows and steps of an H100, and the figures that the CUDA-L2 paper published for it |
| `stability/` | rows of 40 shapes that were searched several times, which count nowhere else |
| `summary.py`, `summary.json` | what the rows come to |
| `curves.py`, `curves.json` | what a search finds for how many GPU seconds and candidates; `searches.py` reads the steps |
| `stability.py` | two searches of the same shapes against each other: seeds, budgets |
| `short_launches.py` | how often searches met the shorter of a launch's two times |
| `worst.py` | the slowest results with what bounds them |
| `gpu_scaling.py` | campaigns on different numbers of GPUs |
| `marked_page.py` | the tables of these scripts in a page |
| `h100_table.py` | an H100 beside the CUDA-L2 paper's figures for it |
| `family_search.py` | kernel families against each other |
| `server/` | what single launches cost, and what can be reached with them |

After new rows and steps, from the repository's root:
    python -m benchmarks.h200.summary --page docs/results.md
    python -m benchmarks.h200.curves --page docs/results.md
    python -m benchmarks.h200.worst --page docs/results.md
    python -m benchmarks.pictures.campaign benchmarks/h200/rows docs/pictures/h200_campaign.svg
    python -m benchmarks.pictures.search_curves benchmarks/h200/curves.json docs/pictures/h200_search_curves.svg
"""
