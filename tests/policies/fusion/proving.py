"""Proves a fuser's candidate whole on the emulator, as a search does."""

import time
from typing import Any

import torch

from cudal2_agent.contract.plan.chip import LIMITS, REFERENCE_CHIPS
from cudal2_agent.contract.plan.resolve import resolve
from cudal2_agent.contract.records.candidate import Candidate
from cudal2_agent.contract.records.evaluation import TestResult
from cudal2_agent.contract.records.module_task import ModuleTask
from cudal2_agent.contract.settings.options import VerifyOptions
from cudal2_agent.policies.fusion.fused_source import written
from cudal2_agent.policies.fusion.grouping import Groups, grouped
from cudal2_agent.policies.fusion.space import choices
from cudal2_agent.sandbox.emulator.executor import Interleavings
from cudal2_agent.sandbox.emulator.loading import load_kernel
from cudal2_agent.sandbox.emulator.modules.emulated_module import EmulatedModule
from cudal2_agent.sandbox.modules.proof import ModuleProof, PreparedCases
from cudal2_agent.sandbox.verification.executor import Traits
from tests.sandbox.emulator.proving import Build

SEED = 3


def candidate_of(task: ModuleTask, *, algebra: bool = False, **chosen: Any) -> tuple[Candidate, Groups]:
    """The best expected candidate, with other choices for some kernels."""
    groups = grouped(task, algebra=algebra)
    best = {name: each[0] for name, each in choices(groups, REFERENCE_CHIPS[task.arch]).items()}
    return written(task, groups, best | chosen), groups


def failed(candidate: Candidate, task: ModuleTask, build: Build) -> list[TestResult]:
    """Every test of the proof that fails."""
    built = build(candidate.source, candidate.plan, task)
    kernel = load_kernel(built, resolve(candidate.plan, task, LIMITS[task.arch], sms=132), task)
    executor = EmulatedModule(kernel, Interleavings(task, SEED, time.monotonic() + 60))
    proof = ModuleProof(executor, PreparedCases(task, torch.device("cpu"), 1 << 28), Traits(), VerifyOptions(seed=SEED))
    return [each for each in proof.tests() if not each.passed]
