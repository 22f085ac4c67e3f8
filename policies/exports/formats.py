"""The formats that trainers load. Each is a function from one run's samples to rows; column names are those of TRL.

Withheld rewards are neither good nor bad: a sample without a reward is in no format that needs one. Pairs and groups hold
answers to one prompt in one run, measured in one environment.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field

from cudal2_agent.contract.base import Record
from cudal2_agent.contract.records.exchange import Message
from cudal2_agent.contract.records.trajectory import Trajectory
from cudal2_agent.contract.reward.reward import CLIP, FLOOR
from cudal2_agent.contract.reward.roofline import roofline_us
from cudal2_agent.policies.chat.prompts.composition import Prompts
from cudal2_agent.policies.exports.contrastive import contrasted
from cudal2_agent.policies.exports.counts import ExportCounts
from cudal2_agent.policies.exports.samples import TrainingSample, samples_of
from cudal2_agent.policies.exports.task_columns import task_columns

TrainerFormat = Literal["sft", "preference", "kto", "grpo", "groups", "contrastive"]
Row = dict[str, Any]
Z_CLIP = 1.5
_MIN_GROUP = 2


class ExportOptions(Record):
    """Options of an export.

    `messages`: `sft` rows have `messages` instead of prompt and completion. `min_speedup`: over the baseline that counts, the
    least for `sft`, and what parts good from bad in `kto` (1 unless given). `margin`: the smallest difference of rewards that
    counts in `preference` and `kto`. `test_share`: share of the shapes that are kept for the test split, drawn by `seed`.
    `test_shapes`: MxNxK that are in the test split in any case.
    """

    messages: bool = False
    min_speedup: float | None = Field(default=None, gt=0)
    margin: float = Field(default=0.05, ge=0)
    test_share: float = Field(default=0.0, ge=0, lt=1)
    test_shapes: tuple[str, ...] = ()
    seed: int = 0


Rows = Callable[[Trajectory, Prompts, ExportOptions, ExportCounts], Iterator[Row]]


def sft(trajectory: Trajectory, prompts: Prompts, options: ExportOptions, counts: ExportCounts) -> Iterator[Row]:
    """Verified candidates, for supervised training: prompt and completion, or both as messages."""
    for sample in samples_of(trajectory, prompts, counts):
        fast = options.min_speedup is None or (sample.speedup is not None and sample.speedup >= options.min_speedup)
        if not (sample.verified and fast):
            counts.left_out["below_speedup" if sample.verified else "unverified"] += 1
        else:
            prompt, completion = turns(sample.prompt), reply(sample.completion)
            text = {"messages": prompt + completion} if options.messages else {"prompt": prompt, "completion": completion}
            yield {**text, **_scores(sample)}


def preference(trajectory: Trajectory, prompts: Prompts, options: ExportOptions, counts: ExportCounts) -> Iterator[Row]:
    """Pairs of answers to one prompt whose rewards differ by the margin or more. Each answer is in one pair at most.

    The better half of a group is paired with the worse half by rank. A chosen candidate is verified.
    """
    for group in _groups(samples_of(trajectory, prompts, counts), counts):
        ranked = sorted(group, key=_reward, reverse=True)
        half = len(ranked) // 2
        counts.left_out["unpaired"] += len(ranked) - 2 * half
        for chosen, rejected in zip(ranked[:half], ranked[-half:], strict=True) if half else ():
            if chosen.verified and _reward(chosen) - _reward(rejected) >= options.margin and chosen.reward != rejected.reward:
                yield {
                    "prompt": turns(chosen.prompt),
                    "chosen": reply(chosen.completion),
                    "rejected": reply(rejected.completion),
                    "shape": chosen.task.shape,
                    **{f"chosen_{name}": value for name, value in _earned(chosen).items()},
                    **{f"rejected_{name}": value for name, value in _earned(rejected).items()},
                }
            else:
                counts.left_out["unpaired"] += 2


def kto(trajectory: Trajectory, prompts: Prompts, options: ExportOptions, counts: ExportCounts) -> Iterator[Row]:
    """Single answers with a label: true where the reward is above that of the least speedup, false below it or not verified.

    Answers within the margin of that reward are left out.
    """
    bar = CLIP * math.tanh(math.log(options.min_speedup or 1.0) / CLIP)
    for sample in _rewarded(samples_of(trajectory, prompts, counts), counts):
        if abs(_reward(sample) - bar) < options.margin:
            counts.left_out["within_margin"] += 1
        else:
            text = {"prompt": turns(sample.prompt), "completion": reply(sample.completion)}
            yield {**text, "label": _reward(sample) >= bar and sample.verified, **_scores(sample)}


def grpo(trajectory: Trajectory, prompts: Prompts, _: ExportOptions, counts: ExportCounts) -> Iterator[Row]:
    """One row per prompt, with the task and what a reward function compares a new kernel with."""
    groups: dict[tuple[str, str], list[TrainingSample]] = {}
    for sample in samples_of(trajectory, prompts, counts):
        groups.setdefault(sample.group, []).append(sample)
    for group in groups.values():
        first = group[0]
        verified = [sample for sample in group if sample.verified]
        yield {
            "prompt": turns(first.prompt),
            "shape": first.task.shape,
            **task_columns(first.task),
            "chip": first.chip.name,
            "environment": first.provenance.environment,
            "roofline_us": roofline_us(first.task, first.chip),
            "baseline_us": _median(sample.baseline_us for sample in verified),
            "best_us": min((sample.time_us for sample in verified if sample.time_us is not None), default=None),
            "best_reward": max((sample.reward for sample in group if sample.reward is not None), default=None),
            "mean_reward": _mean(sample.reward for sample in group),
            "best_gap_closed": max((sample.gap_closed for sample in group if sample.gap_closed is not None), default=None),
            "provenance": first.provenance.model_dump(),
        }


def groups(trajectory: Trajectory, prompts: Prompts, _: ExportOptions, counts: ExportCounts) -> Iterator[Row]:
    """All answers to one prompt with their rewards and two kinds of advantages. Groups of equal rewards teach nothing."""
    for group in _groups(samples_of(trajectory, prompts, counts), counts):
        rewards = [_reward(sample) for sample in group]
        if len(group) < _MIN_GROUP or max(rewards) == min(rewards):
            counts.left_out["unpaired"] += len(group)
        else:
            yield {
                "prompt": turns(group[0].prompt),
                "completions": [sample.completion for sample in group],
                "rewards": rewards,
                "gap_closed": [sample.gap_closed for sample in group],
                "advantages": leave_one_out(rewards),
                "advantages_z": clipped_z(rewards),
                "outcomes": [sample.outcome for sample in group],
                "shape": group[0].task.shape,
                "provenance": [sample.provenance.model_dump() for sample in group],
            }


def contrastive(trajectory: Trajectory, prompts: Prompts, _: ExportOptions, counts: ExportCounts) -> Iterator[Row]:
    """Answers to prompts that show scored exemplars of different buckets, as CUDA-L1 (arXiv 2507.14111) trains on."""
    for sample in _rewarded(contrasted(trajectory, prompts, counts), counts):
        text = {"prompt": turns(sample.prompt), "completion": reply(sample.completion)}
        yield {**text, "exemplars": list(sample.exemplars), "buckets": list(sample.exemplars.values()), **_scores(sample)}


FORMATS: dict[TrainerFormat, Rows] = {
    "sft": sft,
    "preference": preference,
    "kto": kto,
    "grpo": grpo,
    "groups": groups,
    "contrastive": contrastive,
}


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Each reward minus the mean of the others. Source: REINFORCE leave-one-out, as in Dr. Kernel (arXiv 2602.05885).

    A mean that includes the reward itself biases the gradient: it takes a share 1/n of every reward away.
    """
    total, others = sum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]


def clipped_z(rewards: Sequence[float]) -> list[float]:
    """Rewards minus their mean in standard deviations, clipped at ±1.5. Source: CUDA-L1 (arXiv 2507.14111).

    The clip keeps one outlier, which may be a flaw of the measurement, from dominating an update.
    """
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
    return [max(-Z_CLIP, min(Z_CLIP, (reward - mean) / deviation)) if deviation else 0.0 for reward in rewards]


def turns(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [message.model_dump() for message in messages]


def reply(text: str) -> list[dict[str, str]]:
    return [{"role": "assistant", "content": text}]


def _rewarded(samples: Iterable[TrainingSample], counts: ExportCounts) -> Iterator[TrainingSample]:
    for sample in samples:
        if sample.reward is None:
            counts.left_out["withheld"] += 1
        else:
            yield sample


def _groups(samples: Iterable[TrainingSample], counts: ExportCounts) -> list[list[TrainingSample]]:
    """The samples with a reward by prompt and environment."""
    found: dict[tuple[str, str], list[TrainingSample]] = {}
    for sample in _rewarded(samples, counts):
        found.setdefault(sample.group, []).append(sample)
    return list(found.values())


def _reward(sample: TrainingSample) -> float:
    return FLOOR if sample.reward is None else sample.reward


def _earned(sample: TrainingSample) -> Row:
    return {
        "reward": sample.reward,
        "gap_closed": sample.gap_closed,
        "speedup": sample.speedup,
        "outcome": sample.outcome,
        "provenance": sample.provenance.model_dump(),
    }


def _scores(sample: TrainingSample) -> Row:
    return {"shape": sample.task.shape, **_earned(sample)}


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
