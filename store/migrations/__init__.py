"""The numbered migrations of the store's database, which alembic runs. A new one changes `tables.VERSION`.

- `env.py`: what alembic calls; it works on the connection that `engine.py` gives it.
- `versions/`: a file per migration. One that was released is never changed.
"""
