"""Records as text for a terminal.

`run_answer`: a run's answer. `file_answer`: the answer of `verify` and `bench`. `profile_answer`: the answer of `profile`.
`step_answer`: one step in full. `campaign_answer`: the answers of `campaign`. `campaign_table`: the live table of a campaign.
`model_bench_table`: the figures of a bench for models. `prior_table`: learned priors and figures of a bench of proposals.
`advice_table`: what a model would gain. `calibration_answer`: what a calibration measured. `proposal_table`: the worth of what
a language model proposes. `alignment`: tables of text in aligned columns.
`progress`: events as lines and a status line on stderr. `meter`: rate and time left of indexing and of commands over the store.
"""
