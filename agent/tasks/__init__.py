"""Problem files of modules, and collections of them.

- `named_problems`: the file behind a name such as `kernelbench:1/19`, in the collections that the user added
- `problem_sources`: the files of a file, a folder or a collection
- `adding`: adds a collection
- `task_check`: whether files are tasks, and sound ones
"""
