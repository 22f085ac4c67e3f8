"""Processes that run our own code, on the ground floor: it imports the standard library only, and Ray where it is used.

`child`: a child process, the messages between it and its parent, and its end. `git`: every call of git.
`ray_actors`: actors on a Ray cluster.
"""
