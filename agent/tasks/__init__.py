"""Problem files of modules.

- `named_problems.py`: the file behind a name such as `kernelbench:1/19`, in the collections that the user added.
"""
