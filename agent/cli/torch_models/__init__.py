"""The verbs about a PyTorch model: `advise` says what it would gain by a library, `tune` makes the library and measures it.

`tune_parts`: where `tune` searches and measures, from its flags.
"""

from cudal2_agent.agent.cli.torch_models.advise import EXAMPLE as ADVISE_EXAMPLE
from cudal2_agent.agent.cli.torch_models.advise import advise
from cudal2_agent.agent.cli.torch_models.tune import EXAMPLE as TUNE_EXAMPLE
from cudal2_agent.agent.cli.torch_models.tune import tune

__all__ = ["ADVISE_EXAMPLE", "TUNE_EXAMPLE", "advise", "tune"]
