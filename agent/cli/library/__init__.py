"""`cudal2-agent library`: kernels that campaigns found, as a library that programs launch from.

One file per command, named like it; `library_browsing`: list and show. `library_source`: the library that a command reads.
"""

import typer

from cudal2_agent.agent.cli.library import (
    library_browsing,
    library_build,
    library_check,
    library_export,
    library_prepare,
    library_ranges,
    library_tune,
)

app = typer.Typer(
    help="Kernels that campaigns found, as a library.",
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog="\b\nExample:\n  cudal2-agent library list",
)
app.command("build", epilog=library_build.EXAMPLE)(library_build.build)
app.command("list", epilog=library_browsing.LIST_EXAMPLE)(library_browsing.list_)
app.command("show", epilog=library_browsing.SHOW_EXAMPLE)(library_browsing.show)
app.command("export", epilog=library_export.EXAMPLE)(library_export.export)
app.command("prepare", epilog=library_prepare.EXAMPLE)(library_prepare.prepare)
app.command("ranges", epilog=library_ranges.EXAMPLE)(library_ranges.ranges)
app.command("check", epilog=library_check.EXAMPLE)(library_check.check)
app.command("tune", epilog=library_tune.EXAMPLE)(library_tune.tune)
