"""Benches: arms × tasks → rows → table. `models/` compares models, `proposals/` compares policies."""
