"""`cudal2-agent tune`: from a model to a library of its matrix products, and what the model gains by it.

`tuned_model`: the model that is named: a file, a configuration or a trace; what it multiplies. `tune_records`: what is asked,
measured and answered. `tuning`: the stages; `tune_folder`: what a later call resumes from. `product_choice`: what is searched,
and what the library holds. `range_building`, `range_stage`: kernels for M between those of the passes, built and judged;
`range_search`: how far below its own M one is faster. `gpu_stages`: what runs on the GPU, in a child process:
`judged_products` races kernels against PyTorch's own product, `judged_ranges` those for other M, `model_timing` times the
whole model with and without the library, `gpu_shares` says what its GPU time is made of. `time_limit` divides `--minutes`.
"""
