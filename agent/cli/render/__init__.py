"""Records as text for a terminal.

`run_answer`: a run's answer, and one step in full. `file_answer`: the answers of `verify`, `bench` and `profile`.
`published_answer`: the answer of `bench` about published modules.
`campaign_table`: the answers of `campaign`, and its live table. `model_bench_table`: the figures of a bench for models.
`prior_table`: learned priors, figures of a bench of proposals, and the worth of what a language model proposes.
`advice_table`: what a model would gain. `tune_table`: what it gained. `calibration_answer`: what a calibration measured.
`alignment`: tables of text in aligned columns.
`plain_text`, `plain_console`: the filter of everything that is printed.
`progress`: events as lines and a status line on stderr. `meter`: rate and time left of indexing and of commands over the store.
"""
