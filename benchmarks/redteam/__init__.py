"""The red team against the sandbox. Run: python -m benchmarks.redteam

- `__main__`: evaluates all candidates of `tests/redteam` and writes result and table
- `redteam_bench`: one sandbox that evaluates candidates one after another and survives them
- `redteam_table`: the result as a record and as Markdown
"""
