"""Rules on the distribution of the work over the SMs: too few CTAs, a tail, imbalance.

The time is that of the SM that works longest. The idle time of the others could be won by distributing the work evenly.
"""

import math
from collections.abc import Iterator

from cudal2_agent.contract.records.diagnosis import Finding
from cudal2_agent.contract.reward.roofline import latency_share
from cudal2_agent.sandbox.diagnosis.counter_rules.counted import CountedLaunch, Rule, worth

FULL_WAVE = 0.85  # of the last wave's slots in use


def spread(counted: CountedLaunch) -> Iterator[Finding]:
    average, longest = counted.get("active_cycles"), counted.get("active_cycles_max")
    if average is None or not longest:
        return
    idle = max(0.0, 1 - average / longest)
    worked = f"{counted.launch.entry}: SMs worked {average:,.0f} cycles on average and {longest:,.0f} at most"
    waves = counted.get("waves") or 0.0
    if counted.ctas < counted.chip.sms:
        yield from worth(
            "idle-sms",
            idle * (1 - latency_share(counted.time_us, counted.chip)),
            f"{worked}; {counted.ctas} CTAs on {counted.chip.sms} SMs",
            "use smaller output tiles, or split K over several CTAs",
        )
    elif waves > 1 and waves / math.ceil(waves) < FULL_WAVE:
        yield from worth(
            "tail-wave",
            idle,
            f"{worked}; {counted.ctas} CTAs make {waves:.2f} waves",
            "choose a tile that divides the output into whole waves, a persistent grid, or stream-K",
        )
    else:
        yield from worth(
            "imbalance",
            idle,
            f"{worked}; {counted.ctas} CTAs on {counted.chip.sms} SMs",
            "give every SM the same number of tiles: another tile, a persistent grid with stream-K, or CTAs that fetch tiles",
        )


RULES = (Rule(judges=("idle-sms", "tail-wave", "imbalance"), needs=("active_cycles", "active_cycles_max"), find=spread),)
