"""Campaigns: kernels for many shapes, on several GPUs, from one queue in the store.

- `campaign.py`: a campaign on this machine, from its start to its end.
- `processes.py`: its processes: started, watched, replaced when they are lost, and ended.
- `gpu_worker.py`: the process of one GPU. `campaign_process.py`: what all processes are told, do and report.
- `claiming.py`: a worker's loop over the queue. `shape_search.py`: one shape after another in an open sandbox.
- `winners.py`: from a finished run to its row.
- `proving.py`: proves winners on the emulator.
- `ray_cluster.py`: a campaign on a Ray cluster.
- `watching.py`: what came to the store since the start. `overview.py`: its figures.
- `shapes.py`: the shapes to search. `recording.py`: those of a PyTorch model.
- `result_files.py`: results as a file.
"""
