"""`cudal2-agent mcp`: tools for other agents. `verb`: its flags. `agent_host`: the run and its server in one process."""

from cudal2_agent.agent.cli.agents.verb import EXAMPLE, serve

__all__ = ["EXAMPLE", "serve"]
