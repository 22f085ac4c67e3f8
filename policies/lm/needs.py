"""What a language model needs beyond the product's own packages."""

from importlib.util import find_spec

from cudal2_agent.contract.errors import UsageError

TRAINING = ("torch", "transformers", "peft", "trl", "accelerate", "datasets")
SAMPLING = ("torch", "transformers", "peft", "safetensors")


def require(packages: tuple[str, ...]) -> None:
    """Raises: UsageError, naming the packages that are missing and how to install them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise UsageError(f"a language model needs {', '.join(missing)}; run: pip install 'cudal2-agent[lm]'")
