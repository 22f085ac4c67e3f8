"""`cudal2-agent train lm-evaluate` and `lm-merge`: what a trained model's proposals are worth, and the model as a whole one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from cudal2_agent.agent.cli.arguments import AsJson, Device
from cudal2_agent.agent.cli.train.lm import BaseModelName
from cudal2_agent.contract.errors import UsageError

EVALUATE_EXAMPLE = "\b\nExample:\n  cudal2-agent train lm-evaluate lm-grpo --shape 4096x1024x512 --shape 64x64x16384"
MERGE_EXAMPLE = "\b\nExample:\n  cudal2-agent train lm-merge lm-grpo --out merged"

Adapter = Annotated[Path, typer.Argument(metavar="ADAPTER", help="Folder that `train lm` wrote.", show_default=False)]


def evaluate_lm(
    adapter: Adapter,
    shape: Annotated[list[str] | None, typer.Option("--shape", help="M x N x K; may be repeated.", show_default=False)] = None,
    model: BaseModelName = None,
    proposals: Annotated[int, typer.Option("--proposals", min=1, help="Per shape.")] = 8,
    seed: Annotated[int, typer.Option("--seed", help="Of what is sampled.")] = 0,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Score an adapter's proposals, free and constrained, beside random valid schedules and the analytic prior."""
    from cudal2_agent.policies.lm.needs import SAMPLING, require

    require(SAMPLING)
    if not shape:
        raise UsageError("lm-evaluate needs shapes; add --shape 4096x1024x512, once for each")
    from cudal2_agent.agent.cli.render.prior_table import proposal_lines
    from cudal2_agent.agent.cli.render.progress import Progress
    from cudal2_agent.agent.learning.environment.sandbox_score import open_score
    from cudal2_agent.contract.records.task import GemmTask, parse_shape
    from cudal2_agent.contract.settings.settings import load_settings
    from cudal2_agent.policies.lm.adapter_folder import open_adapter
    from cudal2_agent.policies.lm.proposal_worth import ModelProposer, PriorProposer, RandomProposer, compare
    from cudal2_agent.policies.lm.replies.reply_reward import ScoredCandidates
    from cudal2_agent.policies.lm.replies.reply_sampler import ReplySampler

    with Progress() as progress, open_score(load_settings(device=device), emit=progress.emit) as score:
        tasks = [GemmTask(m=m, n=n, k=k, arch=score.chip.arch) for m, n, k in map(parse_shape, shape)]
        loaded, _ = open_adapter(adapter, model)
        sampler, name = ReplySampler(loaded), str(adapter)
        models = (ModelProposer(name, sampler), ModelProposer(f"{name}, constrained", sampler, constrained=True))
        proposers = (*models, RandomProposer(), PriorProposer())
        scores = ScoredCandidates(score, progress.emit)
        comparison = compare(proposers, tasks, score.chip, scores, progress.emit, proposals, seed)
    print(comparison.model_dump_json() if as_json else "\n".join(proposal_lines(comparison.figures)))


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
