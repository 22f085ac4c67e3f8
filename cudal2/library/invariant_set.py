"""The kernels of the batch-invariant mode in the cache of built kernels: `CUDAL2_HOME/cache/library`.

A set is `batch-invariant-<arch>.json`, an `InvariantSet`; its cubins lie beside it as `<source_sha256>-<arch>.cubin`.
`cudal2-agent library prepare --batch-invariant` writes them.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

from cudal2_agent.contract.errors import LibraryError
from cudal2_agent.contract.foreign import parse_record, read_file
from cudal2_agent.contract.records.library import InvariantKernel, InvariantSet
from cudal2_agent.contract.records.task import Arch

AGAIN = "`cudal2-agent library prepare --batch-invariant` builds it again"


class BuiltSet:
    """A set with its code. `cubins`: by the hash of their content."""

    def __init__(self, kernels: InvariantSet, cubins: Mapping[str, bytes]) -> None:
        self.kernels, self._cubins = kernels, cubins

    def cubin(self, kernel: InvariantKernel) -> bytes:
        return self._cubins[kernel.cubin_sha256]


def set_path(folder: Path, arch: Arch) -> Path:
    return folder / f"batch-invariant-{arch}.json"


def cubin_path(folder: Path, source_sha256: str, arch: Arch) -> Path:
    return folder / f"{source_sha256}-{arch}.cubin"


def read_set(folder: Path, arch: Arch, product: str) -> BuiltSet | None:
    """The set of an architecture; None where it was not built, or by another version of the product.

    Raises: LibraryError where a file is damaged, or of another architecture.
    """
    path = set_path(folder, arch)
    if not path.exists():
        return None
    try:
        found = parse_record(InvariantSet, read_file(path))
    except (OSError, ValueError) as exc:
        raise LibraryError(f"{path} is damaged ({exc}); {AGAIN}") from exc
    if found.product != product:
        return None
    if found.arch is not arch:
        raise LibraryError(f"{path} is a set for {found.arch}; {AGAIN}")
    return BuiltSet(found, {one.cubin_sha256: _cubin(folder, one, arch) for one in found.kernels})


def _cubin(folder: Path, kernel: InvariantKernel, arch: Arch) -> bytes:
    path = cubin_path(folder, kernel.source_sha256, arch)
    try:
        content = read_file(path)
    except OSError as exc:
        raise LibraryError(f"{path} is missing; {AGAIN}") from exc
    if hashlib.sha256(content).hexdigest() != kernel.cubin_sha256:
        raise LibraryError(f"{path} is damaged: it is not the kernel of its set; {AGAIN}")
    return content
