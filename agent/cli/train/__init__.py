"""`cudal2-agent train`: policies that learn from stored trajectories. One file per command."""

import typer

from agent.cli.train import lm

app = typer.Typer(
    help="Train policies on stored trajectories.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent train lm --stage sft --out lm-sft",
)
app.command("lm", epilog=lm.EXAMPLE)(lm.train_lm)
