"""The timer and what it stands on.

- `__main__`: the timer's own test: a kernel against itself, and two versions of the timer
- `prior_kernels`: the kernels that these tests time
- `retention`: what one launch can leave to the next, and what removes it
- `server_floor`: what a single launch costs before a kernel does any work
"""
