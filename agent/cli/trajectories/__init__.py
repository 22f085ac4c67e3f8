"""`cudal2-agent trajectories`: the attempts as training data.

`browsing`: list, show. `stats`: stats. `sending`: export. `receiving`: import, merge. `maintenance`: prune, verify.
`selecting`: the filter options that these commands share.
"""

import typer

from cudal2_agent.agent.cli.trajectories import browsing, maintenance, receiving, sending, stats

app = typer.Typer(
    help="Every attempt, with what the policy saw.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent trajectories export --out steps.jsonl",
)
app.command("list", epilog=browsing.LIST_EXAMPLE)(browsing.list_trajectories)
app.command("show", epilog=browsing.SHOW_EXAMPLE)(browsing.show)
app.command("stats", epilog=stats.EXAMPLE)(stats.stats)
app.command("import", epilog=receiving.IMPORT_EXAMPLE)(receiving.import_)
app.command("export", epilog=sending.EXAMPLE)(sending.export)
app.command("merge", epilog=receiving.MERGE_EXAMPLE)(receiving.merge)
app.command("prune", epilog=maintenance.PRUNE_EXAMPLE)(maintenance.prune)
app.command("verify", epilog=maintenance.VERIFY_EXAMPLE)(maintenance.verify)
