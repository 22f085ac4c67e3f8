"""`cudal2-agent campaign record`."""

from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson

EXAMPLE = "\b\nExample:\n  cudal2-agent campaign record model.py --out shapes.json"


def record(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.py", help="Defines model() and inputs(). It runs with your rights.", show_default=False),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The shapes, for `campaign run --shapes`.")] = Path(
        "shapes.json"
    ),
    as_json: AsJson = False,
) -> None:
    """Record the matrix products of a PyTorch model, forward and backward, on the CPU.

    FILE.py defines model(), which returns a module, and inputs(), which returns its arguments as a tuple.
    """
    from cudal2_agent.agent.cli.render.alignment import aligned
    from cudal2_agent.agent.library.advise.products import shape_file
    from cudal2_agent.agent.library.advise.recording import record_model
    from cudal2_agent.contract.errors import UsageError
    from cudal2_agent.contract.whole_file import whole_file

    found = shape_file(record_model(file).products)
    try:
        with whole_file(out) as place:
            place.write_text(found.model_dump_json(indent=1) + "\n", "utf-8")
    except OSError as exc:
        raise UsageError(f"{out} cannot be written ({exc.strerror}); name a folder that exists with --out") from exc
    if as_json:
        print(found.model_dump_json())
        return
    rows = [(one.part, f"{one.m}x{one.n}x{one.k}", one.layout, f"{one.count}") for one in found.products]
    print("\n".join(aligned([("part", "shape", "layout", "count"), *rows], right=frozenset((3,)))))
    print(f"{len(found.products)} shapes in {out}")
