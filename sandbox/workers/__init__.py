"""Child processes under limits, and the workers that run candidates in them.

- `process.py`: one child process under limits, with its environment and its captured output
- `confined.py`: the launcher that sets the limits, then becomes the command
- `worker_jail.py`: the files that a worker may use
- `forking.py`: a server that forks a child for each request
- `fork_servers.py`: such servers, as their parent asks them
- `channel.py`: a worker process and the lines exchanged with it, each with a deadline
- `messages.py`: the records that a worker and its parent exchange
- `pool.py`: the workers, one per GPU, replaced when a candidate breaks one
- `turns.py`: processes that share a GPU alternate
- `worker.py`: the main program of a GPU's worker
- `witness.py`: the emulator's pool beside a GPU's
- `internal_errors.py`: errors of this project that a candidate triggers
"""
