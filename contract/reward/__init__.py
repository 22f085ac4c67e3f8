"""What an outcome is worth.

`speedup`: from samples to a ratio, and when predicted times are tied. `reward`, `score`: from an evaluation to a reward, and
the protocol of a score. `roofline`: the least time that a chip allows. `plan_traffic`: that of a module's plan.
`contrast`: exemplars from score buckets.
"""
