"""The command `cudal2-agent`.

`main`: the verbs, and errors as exit codes. One file per verb: `optimize`, `verify`, `bench`, `model_bench`, `advise`,
`calibrate`, `profile`, `runs`, `tasks`, `prior`, `doctor`, `worker` and `index`, whose commands are in `index_state` and
`index_search` too.
`trajectories/`, `campaign/`, `library/`, `train/`: their commands.
`arguments`: the flags that verbs share, and the product they name; `module_flags`: the module. `session`: one run, from its
settings to its answer.
`files`: kernel files through the sandbox and the profiler. `render/`: records as text.
"""
