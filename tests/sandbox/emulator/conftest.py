"""Where the core was not built, the emulator's tests are left out; the parser's need none."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("sandbox.emulator._core") else ["test_*.py", "golden/test_replay.py"]
