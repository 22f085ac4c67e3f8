"""`cudal2-agent train lm-merge`: a trained language model as a whole one, for servers."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson
from cudal2_agent.agent.cli.train.lm import BaseModelName
from cudal2_agent.agent.cli.train.lm_evaluate import Adapter

EXAMPLE = "\b\nExample:\n  cudal2-agent train lm-merge lm-grpo --out merged"


def merge_lm(
    adapter: Adapter,
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.", show_default=False)],
    model: BaseModelName = None,
    as_json: AsJson = False,
) -> None:
    """Write an adapter and its base model as one model, which any server loads."""
    from cudal2_agent.policies.lm.adapter_folder import write_merged
    from cudal2_agent.policies.lm.needs import SAMPLING, require

    require(SAMPLING)
    write_merged(adapter, out, model)
    print(json.dumps({"out": str(out), "adapter": str(adapter)}) if as_json else out)
