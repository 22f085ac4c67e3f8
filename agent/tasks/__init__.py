"""Problem files of modules, and collections of them.

- `named_problems`: the file behind a name such as `kernelbench:1/19`, in the collections that the user added
- `problem_sources`: the files of a file, a folder or a collection
- `adding`: adds a collection
- `task_check`: whether files are tasks, and sound ones
- `grammar/`: draws problem files
- `generation`: draws until as many as wanted are sound tasks of their own
- `task_folder`: the folder of generated tasks
- `signature`: hashes by which a problem is known again
- `held_out`: problems that no generated task may be
"""
