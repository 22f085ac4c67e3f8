"""Sweep files for tests: the lines of one, and the steps that come back from it."""

import io
from collections.abc import Iterable

from cudal2_agent.contract.records.trajectory import Step, Trajectory
from cudal2_agent.store.compression import zstd
from cudal2_agent.store.importing.incoming import IncomingStep
from cudal2_agent.store.sweep.sweep_files import write_sweep
from cudal2_agent.store.sweep.sweep_reading import SweepReader


def lines_in(trajectories: Iterable[Trajectory]) -> list[bytes]:
    """The lines that are written for trajectories."""
    file = io.BytesIO()
    write_sweep(trajectories, file)
    return zstd.decompress(file.getvalue()).splitlines()


def read_back(trajectories: Iterable[Trajectory]) -> list[Step]:
    """The steps that an import would record."""
    reader = SweepReader()
    records = [one for line in lines_in(trajectories) for one in reader.read(line)]
    return [one.step for one in records if isinstance(one, IncomingStep)]
