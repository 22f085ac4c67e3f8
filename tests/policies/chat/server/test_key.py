"""A key comes from its configured source, and is removed from everything that a server sends."""

import base64
import json
import os
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Event, Notice, ignore
from cudal2_agent.policies.chat.server.key import MASK, OPENAI, Redactor, checked_base_url, resolve_key, warn_of_plain_text

KEY = 'sk-proj-Ab3/+x9=Zq_secret\\"k&y-0123456789'
keys = st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=64)


def resolved(**given: object) -> SecretStr | None:
    fields = {"api_key": None, "api_key_file": None, "openai_key": None, "base_url": "http://127.0.0.1/v1", "emit": ignore}
    return resolve_key(**{**fields, **given})


@given(keys, st.text(max_size=20), st.text(max_size=20))
def test_no_form_of_a_key_is_left(key: str, before: str, after: str) -> None:
    redact = Redactor(SecretStr(key))
    for form in (key, json.dumps(key)[1:-1], quote(key, safe=""), base64.b64encode(key.encode()).decode()):
        assert form not in redact(f"{before}{form}{after}")


@given(keys, st.binary(max_size=9), st.binary(max_size=9))
def test_a_key_inside_base64_of_a_longer_text_is_taken_out(key: str, before: bytes, after: bytes) -> None:
    encoded = base64.b64encode(before + key.encode() + after).decode()
    assert Redactor(SecretStr(key))(encoded) != encoded


def test_text_without_the_key_is_left_as_it_is() -> None:
    code = 'asm volatile("mma.sync" :: "r"(x)); // https://example.org/a@b'
    assert Redactor(SecretStr(KEY))(code) == code
    assert Redactor(None)(code) == code


def test_a_key_that_the_server_cut_short_is_taken_out() -> None:
    assert Redactor(SecretStr(KEY))(f"bad key {KEY[:16]}***") == f"bad key {MASK}"


@pytest.mark.parametrize("placeholder", ["none", "EMPTY", "x", "ollama"])
def test_a_placeholder_is_no_secret(placeholder: str) -> None:
    assert Redactor(SecretStr(placeholder))(f"// {placeholder}") == f"// {placeholder}"


def test_names_and_passwords_in_addresses_are_taken_out() -> None:
    assert Redactor(None)("at http://me:hunter2@host/v1 or redis://x@y") == f"at http://{MASK}@host/v1 or redis://{MASK}@y"


def test_redaction_of_two_megabytes_is_quick() -> None:
    text = "://" + "a" * 2_000_000
    assert Redactor(SecretStr(KEY))(text) == text


def test_the_setting_counts_before_the_file_and_the_file_before_openais(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("\ufefffrom-the-file\r\n", encoding="utf-8")
    file.chmod(0o600)
    other = SecretStr("of-openai")
    assert resolved(api_key=SecretStr(" given\n"), api_key_file=file, openai_key=other) == SecretStr("given")
    assert resolved(api_key_file=file, openai_key=other, base_url=None) == SecretStr("from-the-file")
    assert resolved(openai_key=other, base_url=None) == other


def test_openais_key_is_sent_to_no_other_server() -> None:
    assert resolved(openai_key=SecretStr(KEY)) is None


def test_openai_itself_needs_a_key() -> None:
    with pytest.raises(UsageError, match=r"needs a key for https://api\.openai\.com"):
        resolved(base_url=None)


@pytest.mark.parametrize(
    "content", [b"", b" \n\n", b"\xff\xfe\x00", b"two lines\nof text", "schlüssel".encode(), b"k" * 20_000]
)
def test_a_file_without_a_key_is_one_line_that_shows_nothing_of_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(UsageError) as caught:
        resolved(api_key_file=file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "two lines" not in str(caught.value)


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            resolved(api_key_file=path)


@pytest.mark.parametrize(("mode", "notices"), [(0o600, 0), (0o640, 0), (0o644, 1)])
def test_a_file_that_everybody_can_read_is_told_of(tmp_path: Path, mode: int, notices: int) -> None:
    file, events = tmp_path / "key", list[Event]()
    file.write_text(KEY)
    os.chmod(file, mode)
    assert resolved(api_key_file=file, emit=events.append) == SecretStr(KEY)
    assert len(events) == notices
    assert not any(KEY in event.model_dump_json() for event in events)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:8080/v1",
        "ftp://host/v1",
        "http://",
        "http:///v1",
        "https://user:hunter2secret@host/v1",
        "https://hunter2secret@host/v1",
        "https://host/v1?api_key=hunter2secret",
        "https://host/v1?API-KEY=hunter2secret",
        "https://host/v1?key=hunter2secret",
        "http://host:notaport/v1",
        "http://host:99999/v1",
        "http://[::1/v1",
        "",
    ],
)
def test_a_wrong_address_is_one_line_without_its_key(address: str) -> None:
    with pytest.raises(UsageError, match="base_url") as caught:
        checked_base_url(address)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "address", ["http://127.0.0.1:8080/v1", "https://host/openai?api-version=2024-10-21", "http://[::1]:1/v1"]
)
def test_a_sound_address_is_taken_as_it_is(address: str) -> None:
    assert checked_base_url(f" {address}\n") == address


def test_no_address_is_openais() -> None:
    assert checked_base_url(None) == OPENAI


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("http://far.example/v1", True),
        ("https://far.example/v1", False),
        ("http://127.0.0.1:1/v1", False),
        ("http://localhost/v1", False),
    ],
)
def test_a_key_that_travels_unencrypted_is_told_of(address: str, told: bool) -> None:
    events = list[Event]()
    warn_of_plain_text(address, SecretStr(KEY), events.append)
    assert [type(event) for event in events] == [Notice] * told
