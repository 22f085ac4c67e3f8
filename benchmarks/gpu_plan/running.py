"""Runs stages of campaigns within a time, each as `cudal2-agent campaign run`, and collects what they gave.

What is finished is told by the stores, so a later call goes on. A stage begins only if at least `LEAST_S` are left.
"""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.gpu_plan.plan import PlannedCampaign, Stage
from cudal2_agent.agent.campaign.result_files import write_results
from cudal2_agent.store.campaigns.queue import CampaignQueue, campaign_names
from cudal2_agent.store.compression import zstd
from cudal2_agent.store.store import open_store

LEAST_S = 30.0
HANDED_BACK_S = 25.0  # a campaign whose time is up needs so long at most to hand back what is in progress
STORE = "trajectories.sqlite"
_SETTINGS = {"CUDAL2_RACE_BASELINES": "cublaslt", "CUDAL2_PROFILE": "off", "CUDAL2_ROUND_SIZE": "20"}


def is_finished(campaign: PlannedCampaign, home: Path) -> bool:
    """Whether a store has a campaign of that name with no shape left."""
    if not (home / STORE).exists():
        return False
    with open_store(f"sqlite:///{home / STORE}") as store:
        if campaign.name not in campaign_names(store):
            return False
        counts = CampaignQueue(store, campaign.name).counts()
    return counts.total > 0 and not counts.left


def gpus_of(stage: Stage, available: Sequence[int]) -> dict[str, list[int]]:
    """The GPUs of each campaign of a stage, by its name: one after another, and those that are left for one that takes all."""
    left, found = list(available), {}
    for campaign in sorted(stage, key=lambda one: one.gpus is None):
        count = len(left) if campaign.gpus is None else campaign.gpus
        found[campaign.name], left = left[:count], left[count:]
    return found


def command_of(campaign: PlannedCampaign, gpus: Sequence[int], shapes: Path, seconds: float) -> list[str]:
    return [
        *(
            sys.executable,
            "-m",
            "cudal2_agent.agent.cli.main",
            "campaign",
            "run",
            "--name",
            campaign.name,
            "--shapes",
            str(shapes),
        ),
        *("--layout", campaign.layout.value, "--mode", campaign.mode.value, "--gpus", ",".join(map(str, gpus))),
        *("--budget", str(campaign.budget), "--seed", str(campaign.seed), "--provers", "0", "--hours", f"{seconds / 3600:.5f}"),
    ]


def environment_of(campaign: PlannedCampaign, home: Path, share: float) -> Mapping[str, str]:
    """`share`: of the processors, by its GPUs."""
    own = {"CUDAL2_HOME": str(home), "CUDAL2_FINALISTS": str(campaign.finalists), "CUDAL2_SCHEDULE_PRIOR": campaign.prior}
    return {**os.environ, **_SETTINGS, **own, "CUDAL2_COMPILE_JOBS": str(max(int((os.cpu_count() or 1) * share), 1))}


def run_stages(stages: Sequence[Stage], homes: Path, gpus: Sequence[int], seconds: float) -> bool:
    """Whether everything is finished. A campaign that fails is told, and does not hold up the others."""
    deadline_s, finished = time.monotonic() + seconds, True
    for stage in stages:
        left = tuple(one for one in stage if not is_finished(one, homes / one.home))
        remaining_s = deadline_s - time.monotonic() - HANDED_BACK_S
        if left and remaining_s >= LEAST_S:
            _run_stage(left, homes, gpus, remaining_s)
        finished = finished and all(is_finished(one, homes / one.home) for one in stage)
    return finished


def _run_stage(stage: Stage, homes: Path, gpus: Sequence[int], seconds: float) -> None:
    given, started = gpus_of(stage, gpus), []
    for campaign in stage:
        home = homes / campaign.home
        home.mkdir(parents=True, exist_ok=True)
        shapes = home / f"{campaign.name}.txt"
        shapes.write_text("\n".join(campaign.shapes) + "\n", encoding="utf-8")
        own = given[campaign.name]
        print(f"{campaign.name}: {len(campaign.shapes)} shapes on {len(own)} GPUs, {seconds:.0f} s at most", flush=True)
        command = command_of(campaign, own, shapes, seconds)
        environment = environment_of(campaign, home, len(own) / len(gpus))
        with (home / f"{campaign.name}.log").open("a", encoding="utf-8") as log:
            started.append((campaign, subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)))
    for campaign, process in started:
        code = process.wait()
        told = (homes / campaign.home / f"{campaign.name}.log").read_text("utf-8")
        end = f"{campaign.name} ended with {code}:\n{told[-2000:]}" if code else "\n".join(told.splitlines()[-8:])
        print(end, flush=True)


def collect(stages: Sequence[Stage], homes: Path, out: Path) -> None:
    """Each campaign's rows as NAME.jsonl.gz, and each home's store as HOME.sqlite.zst."""
    out.mkdir(parents=True, exist_ok=True)
    campaigns = [one for stage in stages for one in stage if (homes / one.home / STORE).exists()]
    for campaign in campaigns:
        with open_store(f"sqlite:///{homes / campaign.home / STORE}") as store:
            if campaign.name in campaign_names(store):
                rows = [stored.result for stored in CampaignQueue(store, campaign.name).results()]
                print(f"{campaign.name}: {write_results(out / f'{campaign.name}.jsonl.gz', rows)} rows")
    for home in {one.home for one in campaigns}:
        (out / f"{home}.sqlite.zst").write_bytes(zstd.compress(_copy(homes / home / STORE)))


def _copy(store: Path) -> bytes:
    """A consistent copy of a store, which another process may be writing."""
    source, copy = sqlite3.connect(store), sqlite3.connect(":memory:")
    try:
        source.backup(copy)
        return copy.serialize()
    finally:
        source.close()
        copy.close()
