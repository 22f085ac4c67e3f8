"""Settings of all tests."""

from hypothesis import settings

# The result of CI depends only on the commit; `pytest --hypothesis-profile=default` searches for new examples.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")
