"""Permission to read counters, from the driver's and the kernel's settings."""

import pytest

from cudal2_agent.sandbox.profiling.permission import counters_allowed

NOBODY, ADMIN, PERFMON = "0000000000000000", "0000000000200000", "0000004000000000"


@pytest.mark.parametrize(
    ("parameters", "capabilities", "allowed"),
    [
        ("ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: 1\nRmMsg: ", NOBODY, False),
        ("RmProfilingAdminOnly: 1\n", ADMIN, True),
        ("RmProfilingAdminOnly: 1\n", PERFMON, True),
        ("RmProfilingAdminOnly: 0\n", NOBODY, True),
        ("RmOther: 1\n", ADMIN, None),
    ],
)
def test_permission(tmp_path, parameters, capabilities, allowed):
    (tmp_path / "params").write_text(parameters)
    (tmp_path / "status").write_text(f"Name:\tpython\nCapPrm:\t{ADMIN}\nCapEff:\t{capabilities}\n")
    assert counters_allowed(tmp_path / "params", tmp_path / "status") is allowed


def test_without_a_driver_nothing_is_known(tmp_path):
    assert counters_allowed(tmp_path / "absent") is None
