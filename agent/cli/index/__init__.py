"""`cudal2-agent index`: the knowledge base. `index_changes` (add, update, remove, rebuild) has the app of all its commands;
`index_state`: list, status, diff, verify. `index_search`: search.
"""

from cudal2_agent.agent.cli.index.index_changes import app

__all__ = ["app"]
