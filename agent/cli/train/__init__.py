"""The commands that make policies learn from trajectories.

| file | what |
|---|---|
| `schedule` | `train schedule` |
"""

import typer

from agent.cli.train import schedule

app = typer.Typer(
    help="Policies that learn from stored trajectories.",
    epilog="\b\nExample:\n  cudal2-agent train schedule --out h200.safetensors",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("schedule", epilog=schedule.EXAMPLE)(schedule.schedule)
