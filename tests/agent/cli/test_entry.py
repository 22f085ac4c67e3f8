"""The entry point of the package, in a process of its own."""

import os
import subprocess
import sys

import pytest

COUNT = """
import os, sys
from cudal2_agent.agent.cli import main
sys.argv = ["cudal2-agent", "--help"]
main.run()
import numpy as np
np.linalg.eigh(np.eye(128))
print(len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(sys.platform != "linux" or os.cpu_count() == 1, reason="threads are counted in /proc")
def test_linear_algebra_has_one_thread():
    environment = {name: text for name, text in os.environ.items() if not name.endswith("_NUM_THREADS")}
    counted = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, env=environment, check=True)
    assert counted.stdout.splitlines()[-1] == "1"
