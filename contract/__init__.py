"""The border between the parts: records, settings, errors, events and protocols that the parts share.

This package imports pydantic and the standard library only. Every other package imports it.

- `records/`: what travels between the parts: tasks, candidates, evaluations, trajectories
- `plan/`: the launch plan, its expressions, and the chips that it is resolved for
- `reward/`: speedup, reward, score, roofline
- `settings/`: the resolved settings, and the slices that parts take
- `protocols`: what the agent requires of a policy, a sandbox and a store
- `base`: the base class of every record, the hash that makes ids, and their forms
- `foreign`: files, packed lines, JSON and records of strangers, read under limits
- `events`, `errors`: typed events, and the error tree
- `file_system`: whether other machines may write to where a path lies
- `host_limits`: processors, memory and processes that this process may use
- `whole_file`: a file that appears whole or not at all
"""
