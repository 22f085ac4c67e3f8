"""`cudal2-agent train`: priors and language models that learn from stored trajectories. `lm_adapter`: what
`lm` trained, evaluated and merged. The other commands have a file each.
"""

import typer

from cudal2_agent.agent.cli.train import lm, lm_adapter, online, schedule

app = typer.Typer(
    help="Train priors and language models on stored trajectories.",
    epilog="\b\nExamples:\n  cudal2-agent train schedule --name mine\n  cudal2-agent train lm --stage sft --out lm-sft",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("schedule", epilog=schedule.EXAMPLE)(schedule.schedule)
app.command("online", epilog=online.EXAMPLE)(online.online)
app.command("lm", epilog=lm.EXAMPLE)(lm.train_lm)
app.command("lm-evaluate", epilog=lm_adapter.EVALUATE_EXAMPLE)(lm_adapter.evaluate_lm)
app.command("lm-merge", epilog=lm_adapter.MERGE_EXAMPLE)(lm_adapter.merge_lm)
