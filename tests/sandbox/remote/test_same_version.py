"""Both sides compare all that decides how a record reads."""

from pathlib import Path

import pytest

from cudal2_agent.sandbox.remote import same_version

ROOM = Path(same_version.__file__).parent
OF_ONE_SIDE = {"spool_worker.py"}  # what it reports does not travel


def test_every_module_with_records_that_travel_is_compared():
    found = {path.name for path in ROOM.glob("*.py") if "(Record):" in path.read_text("utf-8")}
    assert found - OF_ONE_SIDE == set(same_version.RECORDS)


@pytest.mark.parametrize("name", same_version.RECORDS)
def test_another_form_of_an_answer_is_another_version(monkeypatch, name):
    before = same_version.records_hash.__wrapped__()
    read = Path.read_bytes
    monkeypatch.setattr(
        Path, "read_bytes", lambda path: read(path) + b"# changed" * (path.name == name and path.parent == ROOM)
    )
    assert same_version.records_hash.__wrapped__() != before
