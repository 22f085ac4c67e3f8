"""Recorded outputs: one NPZ per family, and a record of GPU, versions and sources."""

import hashlib
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from cudal2_agent.contract.base import Record as Base
from tests.sandbox.emulator.golden.case import Bytes, Family
from tests.sandbox.emulator.golden.sources import HEADER, source

DATA = Path(__file__).parent / "data"
_RECORDS = "recorded.json"


class Record(Base):
    """Where and when a family was recorded. `fingerprint`: of the sources and inputs that were recorded."""

    gpu: str
    driver: str
    driver_release: str
    nvrtc: str
    commit: str
    date: str
    fingerprint: str


_BY_FAMILY = TypeAdapter(dict[str, Record])


def fingerprint(family: Family) -> str:
    """A hash of a family's source, the header, and the inputs and launches of its cases."""
    state = hashlib.sha256((family.source + source(HEADER)).encode())
    for case in family.cases:
        launch = (case.name, case.kernel, case.grid, case.block, case.cluster, case.smem, case.numbers, case.maps)
        state.update(repr(launch).encode())
        for buffer in case.buffers():
            state.update(buffer.tobytes())
    return state.hexdigest()[:16]


def save(folder: Path, family: Family, outputs: dict[str, Bytes]) -> None:
    """Save the outputs of a family's cases by name, without failed cases."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [case.name for case in family.cases if case.name in outputs]
    joined = np.concatenate([outputs[name] for name in names]) if names else np.zeros(0, np.uint8)
    sizes = np.array([outputs[name].nbytes for name in names], np.int64)
    np.savez_compressed(folder / f"{family.name}.npz", names=np.array(names), sizes=sizes, outputs=joined)


def load(family: Family, folder: Path = DATA) -> dict[str, Bytes]:
    """Recorded outputs by case name."""
    with np.load(folder / f"{family.name}.npz") as kept:
        ends = np.cumsum(kept["sizes"])[:-1]
        return dict(zip(kept["names"].tolist(), np.split(kept["outputs"], ends), strict=True))


def load_records(folder: Path = DATA) -> dict[str, Record]:
    """Records by family; none where nothing was recorded yet."""
    file = folder / _RECORDS
    return _BY_FAMILY.validate_json(file.read_bytes()) if file.exists() else {}


def add_records(folder: Path, records: dict[str, Record]) -> None:
    """Put records beside those of families that were not recorded this time."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _BY_FAMILY.dump_json(load_records(folder) | records, indent=1)
    (folder / _RECORDS).write_bytes(text + b"\n")
