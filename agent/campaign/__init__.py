"""Campaigns: kernels for many shapes or modules, on several GPUs, from one queue in the store.

`campaign`: a campaign on this machine, from its start to its end. `process_slots`: its processes, and others in the place of
lost ones. `gpu_worker`: the process of one GPU, and a worker's loop over the queue. `campaign_process`: what all processes are
told to do, and what they report. `shape_search`: one shape after another in an open sandbox. `winners`: from a finished run to
its row. `proving`: proves winners on the emulator. `ray_cluster`: a campaign on a Ray cluster. `watching`: what came to the
store since the start, and its figures. `shapes`: the shapes to search, and those that a file holds out of training.
`asked_modules`: the modules to search. `module_search`: one module, and its row. `module_figures`: figures of such rows.
`result_files`: results as a file, and which row of a shape counts.
"""
