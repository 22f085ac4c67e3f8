"""Metric sets as data: `common.toml` for every arch, and what each arch names otherwise or has alone."""
