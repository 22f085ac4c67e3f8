"""`cudal2-agent campaign`: many shapes, several GPUs, one queue.

One file per command; `results` has `import` too. `running`: what `run` does once its flags are read.
"""

import typer

from cudal2_agent.agent.cli.campaign import explain, prove, record, report, results, run, status

app = typer.Typer(
    help="Kernels for many shapes, on several GPUs.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent campaign run --shapes grid1000 --gpus all --hours 2",
)
app.command("run", epilog=run.EXAMPLE)(run.run)
app.command("status", epilog=status.EXAMPLE)(status.status)
app.command("results", epilog=results.RESULTS_EXAMPLE)(results.results)
app.command("report", epilog=report.EXAMPLE)(report.report)
app.command("import", epilog=results.IMPORT_EXAMPLE)(results.import_)
app.command("prove", epilog=prove.EXAMPLE)(prove.prove)
app.command("explain", epilog=explain.EXAMPLE)(explain.explain)
app.command("record", epilog=record.EXAMPLE)(record.record)
