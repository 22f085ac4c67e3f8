"""The compiled core, and the error where it was not built."""

from cudal2_agent.contract.errors import DeviceUnavailable

try:
    import cudal2_agent.sandbox.emulator._core as core
except ImportError as exc:
    raise DeviceUnavailable(
        "the emulator's core was not built; reinstall with a C++ compiler on x86-64 (pip install --force-reinstall .)"
    ) from exc

__all__ = ["core"]
