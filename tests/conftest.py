"""What all tests share."""

from hypothesis import settings

# CI must answer the same for the same commit; `pytest --hypothesis-profile=default` looks for new examples.
settings.register_profile("steady", derandomize=True)
settings.load_profile("steady")
