"""The engine of benches: arms on tasks give rows, and rows a table. The bench for models and the one for proposals use it.

- `bench_engine`: one task after another, the next ones prepared meanwhile, until a limit; what is left after a kill.
- `record_lines`: files of records, one JSON object a line.
- `published_files`: modules that others published, measured for `bench --problem`.
"""
