"""What limits a kernel, as findings with evidence, remedy and weight. Nothing in this room runs code.

- `diagnosis.py`: combines the findings below, and those from a predicted time, into one diagnosis
- `static_rules.py`: findings from compiled code and launch plan
- `findings.py`: findings from counters, launch by launch
- `counter_rules/`: the rules that read counters
- `differences.py`: what changed between two profiles
"""
