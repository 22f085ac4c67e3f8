"""Speed on the 1,000 shapes: what is held out of every tuning, and what the campaigns' rows and steps come to.

| file | what is in it |
|---|---|
| `grid.py` | the shapes of the grid, and those that are held out; drawn once and never drawn again |
| `summary.py` | what the rows come to |
| `curves.py`, `searches.py` | what a search finds for how many GPU seconds and candidates; the searches that made the rows |
| `h100_table.py` | an H100 beside the CUDA-L2 paper's figures for it |
| `campaign_picture.py` | speedup over AutoTuning's time, one dot per shape |
| `server_pairs.py`, `server_reach.py` | what predicts the time of a single launch, and what it adds |

The data lie in `benchmarks/campaigns`. After new rows and steps, from the repository's root:
    python -m benchmarks.speed.summary --page docs/results/speed.md
    python -m benchmarks.speed.curves --page docs/results/speed.md
    python -m benchmarks.speed.campaign_picture benchmarks/campaigns/rows docs/pictures/h200_campaign.svg
"""
