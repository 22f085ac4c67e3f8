"""Modules that others published (`ModelNew`, as KernelBench's answers have it), measured as they are.

Covered: the answer on every case of a module's proof; results that were kept from an earlier call; inputs that are written;
times by the module's timer, in the same rounds as all baselines; work on other streams; switches and functions of torch that
the file changes; a file that does not end, or ends its process.
Not covered: a file that forges its times. It runs in the timer's own process, unjailed, because it compiles and launches by
itself. So it runs only where the user trusts it, and nothing that it gives is rewarded or stored.

- `published_row.py`: what is asked, and what is answered
- `instances.py`: the file as a Python module, and instances with the weights of the problem's own model
- `switches.py`: the switches of torch as a file leaves them, and the functions that it replaces
- `published_program.py`: an instance as a program of the timer
- `published_cases.py`: what it computes, judged
- `published_timer.py`: the timer's track and rounds
- `published_child.py`: the process in which all this happens; `measuring.py` starts it
"""
