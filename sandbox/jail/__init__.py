"""Jails for children that touch model-written code: the files and system calls that are left to them.

Everything but `kind.py` uses the standard library only.

- `kind.py`: which layers this machine offers
- `entering.py`: the description of a jail, and how a process enters it
- `landlock.py`: files, by Landlock
- `mounts.py`: files, by a mount namespace
- `syscalls.py`: system calls, by a seccomp filter
"""
