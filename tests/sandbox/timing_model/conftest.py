"""Tests of the timing model are skipped where the emulator's core, which traces and replays, is not built."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("cudal2_agent.sandbox.emulator._core") else ["test_*.py"]
