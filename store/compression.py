"""zstd: of the standard library from Python 3.14 on, before that its backport."""

try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ModuleNotFoundError:
    from backports import zstd

__all__ = ["zstd"]
