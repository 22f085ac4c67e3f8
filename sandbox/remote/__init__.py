"""The sandbox of another machine: its calls as records, over the pipes of a command or through a folder.

- `remote_sandbox.py`: the `Sandbox` protocol over a link, and what a lost worker costs
- `link.py`: what a sandbox asks of a link; `limits.py`: how long a call may take
- `command_link.py`: a link to a command, such as ssh, srun or kubectl exec
- `spool_link.py`: a link through a folder
- `calls.py`, `far_answers.py`: what is asked of a worker elsewhere, and what it answers
- `frames.py`: these records on a stream that others may write to as well
- `spool_folder.py`: these records as files
- `same_version.py`: whether both sides speak the same records
- `call_service.py`: the worker's side: a call, answered by a sandbox of this machine
- `stream_worker.py`, `spool_worker.py`: a worker on stdin and stdout, and one that serves a folder
"""
