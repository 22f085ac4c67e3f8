"""What limits a kernel, as findings with evidence, remedy and weight. Nothing in this room runs code.

- `diagnosis.py`: combines the findings below into one diagnosis
- `static_rules.py`: findings from compiled code and launch plan
- `findings.py`: findings from counters, launch by launch
- `rules/`: the rules that read counters
- `minimum_times.py`: minimum times of a task's parts on a chip
- `differences.py`: what changed between two profiles
"""
