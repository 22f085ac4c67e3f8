"""`cudal2-agent train`: priors and language models that learn from stored trajectories. One file per command."""

import typer

from cudal2_agent.agent.cli.train import lm, lm_evaluate, lm_merge, online, schedule

app = typer.Typer(
    help="Train priors and language models on stored trajectories.",
    epilog="\b\nExamples:\n  cudal2-agent train schedule --name mine\n  cudal2-agent train lm --stage sft --out lm-sft",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.command("schedule", epilog=schedule.EXAMPLE)(schedule.schedule)
app.command("online", epilog=online.EXAMPLE)(online.online)
app.command("lm", epilog=lm.EXAMPLE)(lm.train_lm)
app.command("lm-evaluate", epilog=lm_evaluate.EXAMPLE)(lm_evaluate.evaluate_lm)
app.command("lm-merge", epilog=lm_merge.EXAMPLE)(lm_merge.merge_lm)
