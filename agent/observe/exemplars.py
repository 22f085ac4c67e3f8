"""Contrastive exemplars: earlier kernels of the run with different scores, for a model to compare. Pure.

`contract/contrast.py` draws them; this module says which kernels take part, and with which score.
"""

import math
from collections.abc import Sequence

from agent.observe.ranking import Ranked
from contract.candidate import AnyCandidate
from contract.contrast import draw_contrast
from contract.trajectory import Exemplar


def choose_exemplars(
    ranked: Sequence[Ranked], count: int, seed: int | str, shown: AnyCandidate | None = None
) -> tuple[Exemplar, ...]:
    """At most `count` candidates of different buckets and different sources, best bucket first.

    `shown`: a candidate that the prompt shows already. It is not chosen, and the chosen ones differ from it.
    """
    drawn = draw_contrast(_scored(ranked), count, seed, _source_of, shown.source if shown else None)
    return tuple(Exemplar(candidate=one.step.candidate, attempt=one.attempt, bucket=number) for number, one in drawn)


def _source_of(one: Ranked) -> str:
    return one.step.candidate.source


def _scored(ranked: Sequence[Ranked]) -> list[tuple[float, Ranked]]:
    """Each source that passed, with its score. A candidate counts by its latest evaluation, equal sources by the best.

    The score is the log of the speedup over AutoTuning where all have one, otherwise −log of the time. Where nothing was
    measured, the modelled time takes its place.
    """
    latest = {one.attempt.candidate_id: one for one in ranked}.values()
    trusted = _comparable([one for one in latest if one.plausible])
    paired = [(math.log(one.attempt.speedup), one) for one in trusted if one.attempt.speedup is not None]
    if trusted:
        scored = paired if len(paired) == len(trusted) else [(-math.log(one.time_us), one) for one in trusted]
    else:
        scored = [(-math.log(one.predicted_us), one) for one in latest if one.estimated]
    scored.sort(key=lambda pair: pair[0])
    return list({one.step.candidate.source: (score, one) for score, one in scored}.values())


def _comparable(plausible: Sequence[Ranked]) -> list[Ranked]:
    """Without the candidates that wait for a second witness and are faster than every trusted one."""
    best_us = min((one.time_us for one in plausible if one.trusted), default=math.inf)
    return [one for one in plausible if one.trusted or one.time_us >= best_us]
