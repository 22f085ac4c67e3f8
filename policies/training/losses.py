"""What each stage minimises, for one group. Lower scores are better: a score is ln(predicted time) up to a constant.

The policy over the schedules of a group, with its rivals, is proportional to exp(-score / `TEMPERATURE`).
"""

import math

import torch
from torch import Tensor

from cudal2_agent.policies.training.group_tensors import GroupTensors

TEMPERATURE = 0.03  # of the policy, in units of ln(time): 3 % slower is e times less likely
HUBER = 0.1  # differences of ln(time) above this count linearly: failures to predict a bad schedule should not dominate
ERROR_WEIGHT = 20.0  # of squared errors beside the log-likelihood
RIVAL_WEIGHT = 0.3  # of the likelihood among rivals: most of them are slower, but nobody knows
PAIR_GAP = 0.02  # two schedules closer than this are no pair: screens repeat within 1.5 %
CLIP = 0.2  # of the ratio of the policy to the one that proposed
KL_WEIGHT = 0.1  # of the divergence from the reference, beside gains in standard deviations
CONTEXT = 16  # measured schedules that a prediction of the others may start from


def pinned(scores: Tensor, group: GroupTensors) -> Tensor:
    """Squared error of the times themselves. All other losses are of differences, which leave a constant open."""
    apart = scores[:, : group.count] - (group.costs + group.baseline)
    return torch.nn.functional.huber_loss(apart, torch.zeros_like(apart), delta=HUBER)


def supervised(scores: Tensor, group: GroupTensors) -> Tensor:
    """Times by regression, the best by likelihood: among the measured schedules, and among these and the rivals.

    Shape: scores (members, schedules + rivals).
    """
    measured = scores[:, : group.count]
    apart = (measured - measured.mean(dim=1, keepdim=True)) - (group.costs - group.costs.mean())
    error = torch.nn.functional.huber_loss(apart, torch.zeros_like(apart), delta=HUBER)
    target = torch.softmax(-group.costs / TEMPERATURE, dim=0)
    among_measured = -(target * torch.log_softmax(-measured / TEMPERATURE, dim=1)).sum(dim=1).mean()
    among_all = -(target * torch.log_softmax(-scores / TEMPERATURE, dim=1)[:, : group.count]).sum(dim=1).mean()
    return ERROR_WEIGHT * error + (1 - RIVAL_WEIGHT) * among_measured + RIVAL_WEIGHT * among_all


def contrastive(scores: Tensor, group: GroupTensors) -> Tensor:
    """Pairs of a better and a worse schedule: the better one should be the more likely, the more so the wider the gap."""
    measured = scores[:, : group.count]
    gaps = group.costs[None, :] - group.costs[:, None]  # row better than column where positive
    weight = torch.where(gaps > PAIR_GAP, gaps.clamp(max=HUBER), torch.zeros_like(gaps))
    # Pairs with the best count in full, pairs among slow schedules little: a policy proposes from the top.
    weight = weight * torch.softmax(-group.costs / HUBER, dim=0)[:, None]
    preferred = torch.nn.functional.logsigmoid((measured[:, None, :] - measured[:, :, None]) / TEMPERATURE)
    return -(weight * preferred).sum(dim=(1, 2)).mean() / weight.sum().clamp(min=1e-6)


def group_relative(scores: Tensor, before: Tensor, group: GroupTensors, reference: Tensor | None = None) -> Tensor:
    """Clipped policy gradient with leave-one-out advantages, and the exact KL divergence from the reference.

    `before`: scores of the policy that proposed the group. `reference`: those of the policy that must not be left far behind;
    that of `before` where it is None. All are over the schedules and their rivals. Source: GRPO (arXiv 2402.03300);
    leave-one-out after Dr. Kernel (arXiv 2602.05885), because a mean that includes the reward itself biases the gradient.
    """
    logits, old = _log_policy(scores), _log_policy(before)
    fixed = old if reference is None else _log_policy(reference)
    ratio = (logits - old)[:, : group.count].clamp(-10, 10).exp()
    advantage = group.advantages[None, :]
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
    divergence = (logits.exp() * (logits - fixed)).sum(dim=1).mean()
    return -gain.mean() + KL_WEIGHT * divergence


def _log_policy(scores: Tensor) -> Tensor:
    return torch.log_softmax(-scores / TEMPERATURE, dim=1)


def feedback(errors: Tensor, embedding: Tensor, group: GroupTensors, generator: torch.Generator) -> Tensor:
    """Negative log-likelihood of what a Gaussian process over the embedding predicts from a few measured schedules.

    It trains the embedding for the process that corrects the policy by a run's own times. `errors`: what is left to be
    corrected, ln(measured / predicted), without gradient. Source: deep kernels, Wistuba and Grabocka (ICLR 2021).
    """
    order = torch.randperm(group.count, generator=generator)
    known = int(torch.randint(1, min(CONTEXT, group.count - 1) + 1, (1,), generator=generator))
    given, rest = order[:known], order[known:]
    left = errors - errors[given].median()
    kernel = matern(torch.cdist(embedding, embedding) / math.sqrt(embedding.shape[1]))
    noise, variance = 0.1, left[given].square().mean().clamp(min=1e-3)
    factor = torch.linalg.cholesky(kernel[given][:, given] + noise * torch.eye(known))
    half = torch.linalg.solve_triangular(factor, kernel[given][:, rest], upper=False)
    mean = half.T @ torch.linalg.solve_triangular(factor, left[given][:, None], upper=False)[:, 0]
    spread = variance * ((1 - half.square().sum(dim=0)).clamp(min=0) + noise)
    return 0.5 * ((left[rest] - mean).square() / spread + spread.log()).mean()


def matern(distances: Tensor) -> Tensor:
    """As in `policies.schedule.optimiser.surrogate`."""
    root = math.sqrt(5.0) * distances
    return (1 + root + root.square() / 3) * torch.exp(-root)
