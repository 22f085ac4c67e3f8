"""Results of campaigns as a file of JSON lines, gzip-packed where its name ends in .gz, and back into a store.

The first line names the format; each other one holds the name of a campaign and one row.
"""

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from contract.base import Record
from contract.campaign import ShapeResult
from contract.errors import StoreError, UsageError
from contract.run_settings import RunSettings
from contract.whole_file import whole_file
from policies.trajectories.campaigns.queue import CampaignQueue, campaign_names
from policies.trajectories.store import Store

HEADER = {"format": "cudal2-results", "version": 1}


class ResultLine(Record):
    """One row of a file."""

    campaign: str
    result: ShapeResult


def write_results(path: Path, rows: Iterable[ResultLine]) -> int:
    """Write a whole file; the number of rows. Raises: StoreError."""
    lines = [row.model_dump_json().encode() + b"\n" for row in rows]
    try:
        with whole_file(path) as place, place.open("wb") as raw:
            packed = gzip.GzipFile(path.name, "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
            packed.write(json.dumps(HEADER).encode() + b"\n")
            packed.writelines(lines)
            packed.close()
    except OSError as exc:
        raise StoreError(f"{path} cannot be written ({exc.strerror}); name a folder that exists and has space") from exc
    return len(lines)


def import_results(store: Store, path: Path, name: str | None = None) -> tuple[int, int]:
    """Add the rows of a file, under another name where one is given: (new rows, rows in all). Items of their tasks are done.

    A campaign that the store lacks is created. Raises: UsageError, with the line number; nothing is imported then.
    """
    by_campaign: dict[str, list[ShapeResult]] = defaultdict(list)
    for row in _read(path):
        by_campaign[name or row.campaign].append(row.result)
    new, known = 0, set(campaign_names(store))
    for campaign, results in by_campaign.items():
        queue = CampaignQueue(store, campaign)
        if campaign not in known:
            queue.open(RunSettings())
        new += queue.take_over(results)
    return new, sum(map(len, by_campaign.values()))


def _read(path: Path) -> Iterator[ResultLine]:
    number = 1
    try:
        with gzip.open(path, "rb") if _is_packed(path) else path.open("rb") as file:
            if json.loads(file.readline()) != HEADER:
                raise UsageError(f"{path} line 1: not results of this version; `campaign results --out` writes such files")
            for line in file:
                number += 1
                yield ResultLine.model_validate_json(line)
    except OSError as exc:
        raise UsageError(f"{path} cannot be read ({exc.strerror or exc})") from exc
    except ValidationError as exc:
        raise UsageError(f"{path} line {number}: not a result ({exc.errors(include_url=False)[0]['msg']})") from exc
    except (ValueError, EOFError, zlib.error) as exc:
        raise UsageError(f"{path} line {number}: the file is damaged or not one of results ({exc})") from exc


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"
