"""A language model in the loop: on which tasks it is compared with the search.

| file | what is in it |
|---|---|
| `drawn_tasks.py` | the rule by which the tasks are drawn from committed rows; it was committed before any of them was tried |
| `tasks.json` | the 24 tasks, drawn by it |
"""
