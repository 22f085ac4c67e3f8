"""A Llama of two layers with random weights, a tokenizer trained here, stored searches and a score. Nothing is loaded.

The value of a schedule is that of the prior's time, so that it differs between schedules and needs no compiler.
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from cudal2_agent.contract.plan.chip import Chip
from cudal2_agent.contract.records.candidate import AnyCandidate, Candidate
from cudal2_agent.contract.records.evaluation import CompileFailed
from cudal2_agent.contract.records.task import GemmTask
from cudal2_agent.contract.records.trajectory import Step
from cudal2_agent.contract.reward.contrast import MIN_WIDTH
from cudal2_agent.contract.reward.reward import FLOOR
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.contract.reward.score import Scored, TaskCandidates
from cudal2_agent.policies.lm.compact_prompt import messages_of, reply_of
from cudal2_agent.policies.lm.examples import ScoredSchedule, StoredSearch
from cudal2_agent.policies.schedule.families.registry import families
from cudal2_agent.policies.schedule.named_schedules import schedules_for
from cudal2_agent.policies.schedule.prior import predict_us
from cudal2_agent.store.store import Store
from tests.doubles import CHIP, NOW, OBSERVATION, measured, run_record, unmeasured

TASKS = (GemmTask(m=64, n=64, k=64), GemmTask(m=64, n=64, k=128))
_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_MARKS = ["<|end|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>"]


def texts() -> list[str]:
    schedules = schedules_for(TASKS[0], CHIP)
    replies = [reply_of(schedules, one.values) or "" for one in schedules.best(50)]
    return [*(message.content for message in messages_of(schedules)), *replies]


def tiny_model(folder: Path, *, template: str | None = _TEMPLATE, seed: int = 0, context: int = 4096) -> Path:
    """A model folder. One token is a word or two of a prompt."""
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(texts(), trainers.BpeTrainer(vocab_size=700, special_tokens=_MARKS, initial_alphabet=alphabet))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained, eos_token=_MARKS[0], pad_token=_MARKS[1])
    tokenizer.chat_template = template
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=context,
        initializer_range=0.2,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def search(task: GemmTask, run_id: str, schedules: int = 12) -> StoredSearch:
    """A run that measured the prior's best, each slower than the one before by more than noise."""
    best = schedules_for(task, CHIP).best(schedules)
    scored = [
        ScoredSchedule(one.values, 0.3 - 2 * MIN_WIDTH * rank, math.exp(0.3 - 2 * MIN_WIDTH * rank))
        for rank, one in enumerate(best)
    ]
    return StoredSearch(run_id, task, CHIP, tuple(scored))


def record_search(store: Store, searched: StoredSearch, failed: int = 0) -> None:
    """Writes a search as a run of the store, the best schedules last. `failed`: how many of the best failed instead."""
    run = run_record(searched.run_id, task=searched.task, chip=searched.chip, policy="schedule", status="finished")
    observation = OBSERVATION.model_copy(update={"task": searched.task, "chip": searched.chip})
    store.start_run(run)
    store.record_observation(searched.run_id, observation)
    schedules = schedules_for(searched.task, CHIP)
    for index, one in enumerate(reversed(searched.scored)):
        candidate = schedules.expand(one.values)
        assert isinstance(candidate, Candidate)
        wrong = index >= len(searched.scored) - failed
        evaluation = CompileFailed(message="no", log="") if wrong else measured(10.0 / one.speedup)
        store.record_step(
            Step(
                run_id=searched.run_id,
                index=index,
                round=1,
                observation_id=observation.id,
                candidate=candidate,
                evaluation=evaluation,
                reward=FLOOR if wrong else one.reward,
                created_at=NOW,
            )
        )


class PriorScore:
    """A `contract.reward.score.JointScore` by the prior's time. Raises the scripted errors first, one per request."""

    def __init__(self, errors: Iterable[Exception] = ()) -> None:
        self._errors = list(errors)
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.groups: list[int] = []

    @property
    def chip(self) -> Chip:
        return CHIP

    def score(self, task: GemmTask, candidates: Sequence[AnyCandidate]) -> list[Scored]:
        self.asked.append((task.shape, tuple(one.id for one in candidates)))
        if self._errors:
            raise self._errors.pop(0)
        return [self._scored(task, one) for one in candidates]

    def score_groups(self, groups: Sequence[TaskCandidates]) -> list[list[Scored]]:
        self.groups.append(len(groups))
        return [self.score(group.task, group.candidates) for group in groups]

    def _scored(self, task: GemmTask, candidate: AnyCandidate) -> Scored:
        values = candidate.origin.schedule or {}
        family = next(one for one in families(task.arch) if one.name == values["family"])
        time_us = predict_us(family.work(family.parse(values), task, CHIP), task, CHIP)
        value = max(FLOOR, math.log(roofline_us(task, CHIP) / time_us))
        evaluation = unmeasured(time_us, verified_by="emulator")
        return Scored(candidate_id=candidate.id, evaluation=evaluation, value=value, basis="predicted")
