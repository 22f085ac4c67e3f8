"""Plans and tasks of which each test of the contract changes one field."""

from typing import Any

from cudal2_agent.contract.plan.plan import LaunchPlan, plan_from_json
from cudal2_agent.contract.records.task import Arch, GemmTask

HOPPER = GemmTask(m=4096, n=1024, k=512, arch=Arch.SM_90A)
AMPERE = GemmTask(m=4096, n=1024, k=512, arch=Arch.SM_80)

LAUNCH: dict[str, Any] = {
    "entry": "hgemm",
    "grid": ["ceil(N/128)", "ceil(M/128)", 1],
    "block": [256, 1, 1],
    "dynamic_smem": 65536,
    "args": [{"tensor": "A"}, {"tensor": "B"}, {"tensor": "D", "access": "write"}],
}


def plan(launch: dict[str, Any] | None = None, **fields: Any) -> LaunchPlan:
    """The plain plan for sm_80 with some fields of the launch and of the plan replaced."""
    return plan_from_json({"arch": "sm_80", "launches": [LAUNCH | (launch or {})], **fields})


def with_args(*args: dict[str, Any]) -> dict[str, Any]:
    """A launch whose arguments are D and those given."""
    return {"args": [{"tensor": "D", "access": "write"}, *args]}


def tensor_map(**fields: Any) -> dict[str, Any]:
    return with_args({"tensor_map": {"of": "A", "box": [64, 128], "swizzle": 128} | fields})
