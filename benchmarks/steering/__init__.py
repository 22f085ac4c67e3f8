"""Whether the diagnosis helps the schedule policy. Run: python -m benchmarks.steering

- `__main__`: three arms of a search for each shape and seed, and their comparison
- `arms`: one search of one arm, with measurements that all arms share
"""
