"""A kernel library, opened for reading. Opening checks every entry's id; an entry's fields are validated when it is used.

One library per chip comes with the product.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from cudal2.library.library_form import CUBINS, PACKED, cubin_name, plan_name, read_library_files
from cudal2.library.prepared_kernels import CachedKernel, read_kernel
from cudal2_agent.contract.errors import LibraryError, UsageError
from cudal2_agent.contract.records.library import LibraryEntry, LibraryManifest, MRange, StoredAlgorithm
from cudal2_agent.contract.records.task import AccumulatorType, Activation, ElementType, GemmTask, Layout, TimingMode

MIN_ID_CHARS = 4  # of a shortened id
_AGAIN = "copy the library anew"


Held = TypeVar("Held", LibraryEntry, StoredAlgorithm)


class TaskKey(NamedTuple):
    """What a product is looked up by. Kernels are chosen by offline measurements: products in a row."""

    m: int
    n: int
    k: int
    layout: Layout = Layout.NN
    element: ElementType = ElementType.F16
    accumulate: AccumulatorType = AccumulatorType.F32
    bias: bool = False
    activation: Activation | None = None
    gated: bool = False


def key_of(task: GemmTask) -> TaskKey:
    kind = task.layout, task.element, task.accumulate, task.bias, task.activation, task.gated
    return TaskKey(task.m, task.n, task.k, *kind)


class EntryRange(NamedTuple):
    """An entry, and the smaller M that a kernel of its schedule serves."""

    entry: LibraryEntry
    m_range: MRange


class KernelLibrary:
    """The entries of one library by task and by id, and beside them its algorithms. Safe to share between threads."""

    def __init__(self, path: Path, manifest: LibraryManifest, plain: list[dict[str, Any]]) -> None:
        """`plain`: entries and algorithms as JSON. Raises: LibraryError for one of another chip, or two of one task."""
        self.path, self.manifest = path, manifest
        self._plain = dict(zip((*manifest.entries, *manifest.algorithms), plain, strict=True))
        self._ids: dict[TaskKey, str] = {}
        self._algorithm_ids: dict[TaskKey, str] = {}
        self._used: dict[str, LibraryEntry] = {}
        self._used_algorithms: dict[str, StoredAlgorithm] = {}
        for id_ in manifest.entries:
            self._take(id_, self._ids)
        for id_ in manifest.algorithms:
            self._take(id_, self._algorithm_ids)
        self._of_entry = {one.entry: one for one in manifest.ranges}
        self._ranges: dict[TaskKey, list[tuple[int, MRange]]] = {}  # by product without its M; M of the entry, smallest first
        for key, id_ in self._ids.items():
            if id_ in self._of_entry:
                self._ranges.setdefault(key._replace(m=0), []).append((key.m, self._of_entry[id_]))
        for found in self._ranges.values():
            found.sort(key=lambda one: one[0])

    def __len__(self) -> int:
        return len(self.manifest.entries)

    def __iter__(self) -> Iterator[LibraryEntry]:
        """All entries, by id."""
        return map(self._validated, self.manifest.entries)

    def algorithms(self) -> Iterator[StoredAlgorithm]:
        """All algorithms, by id. Raises: LibraryError where one is not valid."""
        return map(self._validated_algorithm, self.manifest.algorithms)

    def keys(self) -> Iterator[TaskKey]:
        return iter(self._ids)

    def algorithm_keys(self) -> Iterator[TaskKey]:
        return iter(self._algorithm_ids)

    def find(self, key: TaskKey) -> LibraryEntry | None:
        """The entry of exactly this task. Raises: LibraryError where it is not valid."""
        id_ = self._ids.get(key)
        return None if id_ is None else self._validated(id_)

    def ranges(self, key: TaskKey) -> list[EntryRange]:
        """All ranges of M of a weight, whatever M the key has; by M. Raises: LibraryError where an entry is not valid."""
        return [EntryRange(self._validated(one.entry), one) for _, one in self._ranges.get(key._replace(m=0), ())]

    def range_below(self, entry: LibraryEntry) -> MRange | None:
        """The range of M of an entry."""
        return self._of_entry.get(entry.id)

    def range_of(self, key: TaskKey) -> EntryRange | None:
        """The range that a product lies in, of the entry of the nearest larger M. Raises: as `ranges`."""
        found = (one for largest, one in self._ranges.get(key._replace(m=0), ()) if one.smallest <= key.m < largest)
        nearest = next(found, None)
        return None if nearest is None else EntryRange(self._validated(nearest.entry), nearest)

    def algorithm(self, key: TaskKey) -> StoredAlgorithm | None:
        """The algorithm of exactly this task. Raises: LibraryError where it is not valid."""
        id_ = self._algorithm_ids.get(key)
        return None if id_ is None else self._validated_algorithm(id_)

    def entry(self, id_: str) -> LibraryEntry | StoredAlgorithm:
        """What has an id, which may be shortened. Raises: UsageError unless there is exactly one; LibraryError."""
        found = [one for one in self._plain if one.startswith(id_)] if len(id_) >= MIN_ID_CHARS else []
        if len(found) != 1:
            why = f"{len(found)} entries whose id begins" if found else "no entry whose id begins"
            raise UsageError(f"{self.path} has {why} with {id_!r}; see `cudal2-agent library list`")
        return (self._validated_algorithm if found[0] in self.manifest.algorithms else self._validated)(found[0])

    def unfit_for(self, chip: str) -> str:
        """Why no entry may be chosen on a chip before it is measured there; empty where entries may."""
        if chip == self.manifest.chip:
            return ""
        return f"library {self.manifest.name} was measured on {self.manifest.chip}, and this GPU is {chip}"

    def kernel(self, entry: LibraryEntry, sms: int) -> CachedKernel | None:
        """The built kernel that lies beside an entry; None where the library has none for this number of SMs.

        Raises: LibraryError where its files are damaged.
        """
        if entry.cubin_sha256 is None:
            return None
        folder = self.path / CUBINS
        cubin, plan = folder / cubin_name(entry.cubin_sha256), folder / plan_name(entry.cubin_sha256, entry.task, sms)
        if not plan.exists():
            return None
        kernel = read_kernel(entry, cubin, plan, again=_AGAIN)
        if hashlib.sha256(kernel.cubin).hexdigest() != entry.cubin_sha256:
            raise LibraryError(f"{cubin} is damaged: its content does not have the hash of its name; {_AGAIN}")
        return kernel

    def _take(self, id_: str, ids: dict[TaskKey, str]) -> None:
        entry = self._plain[id_]
        try:
            task, chip = entry["task"], entry["chip"]
            sizes, kind = (task["m"], task["n"], task["k"]), (task["layout"], task["element"], task["accumulate"])
            key = TaskKey(*sizes, *kind, task.get("bias", False), task.get("activation"), task.get("gated", False))
            arch, mode, _ = task["arch"], task["mode"], hash(key)
        except (KeyError, TypeError) as exc:
            raise LibraryError(f"entry {id_} of {self.path} is not a library entry: {exc}") from exc
        if (chip, arch) != (self.manifest.chip, self.manifest.arch):
            raise LibraryError(f"entry {id_} of {self.path} is of {chip} ({arch}), the library of {self.manifest.chip}")
        if mode != TimingMode.OFFLINE:
            raise LibraryError(f"entry {id_} of {self.path} was chosen in {mode} mode; libraries hold offline results only")
        if ids.setdefault(key, id_) != id_:
            raise LibraryError(f"{self.path} has two entries of one task: {ids[key]} and {id_}")

    def _validated(self, id_: str) -> LibraryEntry:
        entry = self._used.get(id_)
        if entry is None:
            entry = self._used[id_] = self._read(id_, LibraryEntry)
        return entry

    def _validated_algorithm(self, id_: str) -> StoredAlgorithm:
        algorithm = self._used_algorithms.get(id_)
        if algorithm is None:
            algorithm = self._used_algorithms[id_] = self._read(id_, StoredAlgorithm)
        return algorithm

    def _read(self, id_: str, kind: type[Held]) -> Held:
        try:
            return kind.model_validate(self._plain[id_])
        except ValidationError as exc:
            error = exc.errors(include_url=False)[0]
            where = ".".join(str(part) for part in error["loc"])
            raise LibraryError(f"entry {id_} of {self.path} is not valid: {where} {error['msg']}") from exc


def open_library(path: Path) -> KernelLibrary:
    """The library in a folder or a packed file.

    Raises: UsageError where there is none; LibraryError where it is damaged, foreign or of another version.
    """
    manifest, plain = read_library_files(path)
    return KernelLibrary(path, manifest, plain)


SHIPPED = Path(__file__).parent / "shipped"


def shipped_paths() -> list[Path]:
    """The largest first."""
    return sorted(SHIPPED.glob(f"*{PACKED}"), key=lambda path: (-path.stat().st_size, path.name))


def shipped_library(chip: str) -> KernelLibrary | None:
    """The library that was measured on a chip; None where none ships. Raises: LibraryError where one is damaged."""
    libraries = (open_library(path) for path in shipped_paths())
    return next((library for library in libraries if library.manifest.chip == chip), None)
