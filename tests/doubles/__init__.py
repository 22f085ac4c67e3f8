"""Doubles: what tests use in place of a GPU, a compiler, a model or a library's sources.

`scripted.py`: a policy, a sandbox, a retriever and an embedder that follow a script, and sample records of the contract.
`chat_server.py`: a real HTTP server that speaks the OpenAI protocol and misbehaves on request.
`small_base.py`: a knowledge base of one header and one note.
`building.py`: quick builds, for tests that are not about building.
`pools.py`: pools of schedules that policies share.
`timed_runs.py`: runs whose times a policy can learn to predict.
"""

from tests.doubles.scripted import (
    CHIP,
    ENVIRONMENT,
    INSPECTION,
    LAUNCH,
    NOW,
    OBSERVATION,
    PASSED,
    PLAN,
    TASK,
    ScriptedPolicy,
    ScriptedRetriever,
    ScriptedSandbox,
    WordEmbedder,
    candidate,
    diagnose,
    explain,
    measured,
    number_of,
    profile,
    run_record,
    step,
    unmeasured,
)

__all__ = [
    "CHIP",
    "ENVIRONMENT",
    "INSPECTION",
    "LAUNCH",
    "NOW",
    "OBSERVATION",
    "PASSED",
    "PLAN",
    "TASK",
    "ScriptedPolicy",
    "ScriptedRetriever",
    "ScriptedSandbox",
    "WordEmbedder",
    "candidate",
    "diagnose",
    "explain",
    "measured",
    "number_of",
    "profile",
    "run_record",
    "step",
    "unmeasured",
]
