"""The sandbox as an environment of reinforcement learning, and the score behind it.

`sandbox_score`: scores candidates on one sandbox or on several, from the cache where it can; `open_score` opens it.
`scored_outcome`: from an evaluation to its value. `score_cache`: evaluations kept in a file.
`scoring_sandbox`: what a score asks of a worker, and a worker in this process. `scoring_process`: one in a child process.
`scoring_actor`: one on a Ray cluster. `together`: calls in threads.
`kernel_environment`: `reset` and `step`, for one environment or a batch. `episode`: what happened since the reset, as an
observation. `answers`: from an answer, such as a model's reply, to candidates. `tool_environment`: an environment for TRL,
whose methods are tools.
"""
