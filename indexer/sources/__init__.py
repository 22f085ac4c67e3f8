"""Where a release comes from: one file a kind of source, and `opening.open_source` that tells them apart."""
