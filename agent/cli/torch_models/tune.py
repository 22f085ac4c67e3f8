"""`cudal2-agent tune`: from a model to a library of its matrix products, and what the model gains by it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.library.library_source import ExtendedLibrary
from cudal2_agent.contract.settings.run_settings import TRAINED_BUDGET, UNTRAINED_BUDGET

EXAMPLE = (
    "\b\nExample:\n  cudal2-agent tune model.py --minutes 5\n"
    "  cudal2-agent tune Llama/config.json --tokens 1,16,512 --gpus 0,1\n"
    "  cudal2-agent tune model.py --plan --chip H200"
)
OTHER_ERRORS = 1


def tune(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="A .py file with model() and inputs(), run with your rights; a config.json; or a trace of torch.profiler.",
            show_default=False,
        ),
    ],
    tokens: Annotated[
        str | None,
        typer.Option(
            "--tokens",
            help="Numbers of tokens with commas, given to inputs(tokens).",
            show_default="1,16,512 for a config.json",
        ),
    ] = None,
    training: Annotated[bool, typer.Option("--training", help="Serve and time training steps, not inference.")] = False,
    minutes: Annotated[
        float, typer.Option("--minutes", min=0, help="Time for all; what is not searched by then is left to a later call.")
    ] = 10.0,
    gpus: Annotated[
        str, typer.Option("--gpus", help="That search: all, or numbers such as 0,1. The first GPU here measures.")
    ] = "all",
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            help="exec:COMMAND or spool:FOLDER, for searches elsewhere; may be repeated. Needs --chip.",
            show_default=False,
        ),
    ] = None,
    chip: Annotated[
        str | None, typer.Option("--chip", help="For --plan and --device: the GPU, such as H200.", show_default=False)
    ] = None,
    library: ExtendedLibrary = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FOLDER", help="For the library and all rows.", show_default="the model's name, -tuned"),
    ] = None,
    ways: Annotated[
        str, typer.Option("--ways", help="How the model is timed: eager, graph, compile, max-autotune, with commas.")
    ] = "eager,graph,compile",
    any_m: Annotated[
        bool | None,
        typer.Option(
            "--any-m/--only-these-m",
            help="Measure kernels for the M between those of the passes, too.",
            show_default="for inference",
        ),
    ] = None,
    tolerance: Annotated[
        float, typer.Option("--tolerance", min=0, help="Errors of the model that are tolerated, in PyTorch's own.")
    ] = 1.25,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=1,
            help="Candidates per matrix product.",
            show_default=f"{TRAINED_BUDGET} where the prior was trained on the chip, else {UNTRAINED_BUDGET}",
        ),
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show what is known and what would be searched, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a library of a model's matrix products, and measure the model without it and with it.

    The products are recorded, looked up, searched where no kernel is known, and raced against PyTorch's own; for the rest
    cuBLASLt's algorithms are tried. The same command resumes an interrupted call, and takes what was left for lack of time.
    Fails where an error of the model exceeds the tolerance.
    """
    from cudal2_agent.agent.cli.render.tune_table import TuneLines, answer_lines, plan_lines
    from cudal2_agent.agent.cli.torch_models.tune_parts import campaign_search, read_ways, where
    from cudal2_agent.agent.library.library_building import library_to_extend
    from cudal2_agent.agent.model_tuning.tune_folder import TuneFolder
    from cudal2_agent.agent.model_tuning.tuned_model import open_model, read_tokens
    from cudal2_agent.agent.model_tuning.tuning import TuneOptions, Tuning
    from cudal2_agent.contract.settings.settings import load_settings

    settings = load_settings(budget=budget, use_knowledge=False, profile="off")
    place = where(gpus, tuple(device or ()), chip, only_plan=plan)
    options = TuneOptions(
        training=training,
        minutes=minutes,
        measure=place.measures,
        searchers=max(1, len(place.devices)),
        ways=read_ways(ways),
        tolerance=tolerance,
        ranges=not training if any_m is None else any_m,
    )
    opened, folder = open_model(model, read_tokens(tokens)), TuneFolder(out or Path(f"{model.stem}-tuned"))
    base, lines = library_to_extend(library, place.target.name), TuneLines()
    tuning = Tuning(opened, place.target, base, folder, settings, options, lines)
    if plan:
        found = tuning.plan()
        wanted = [task.model_dump(mode="json") for task in found.wanted]
        answer = {"advice": found.advice.model_dump(mode="json"), "wanted": wanted, "left": found.left}
        print(json.dumps(answer) if as_json else "\n".join(plan_lines(found)))
        return
    try:
        result = tuning.run(campaign_search(settings, place))
    except KeyboardInterrupt:
        lines.note("interrupted: what is done is kept, and the same command resumes")
        raise
    print(result.model_dump_json() if as_json else "\n".join(answer_lines(result)))
    raise typer.Exit(0 if result.within else OTHER_ERRORS)
