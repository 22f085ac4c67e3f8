"""The key and the address of a chat server: which are used, which are refused, and the key's removal from text and log records.

Covered: the key as plain, JSON, URL-quoted and base64 text, alone or inside a longer text; a key that a server truncates;
user names and passwords in addresses. Not covered: a key shorter than eight characters. Such a key is a placeholder for a
server without keys, and replacing `none` in a reply would break code.
"""

import base64
import ipaddress
import json
import logging
import re
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from pydantic import SecretStr

from cudal2_agent.contract.errors import UsageError
from cudal2_agent.contract.events import Emit, Notice

OPENAI = "https://api.openai.com/v1"
_MAX_FILE_BYTES = 16 * 1024
_KEY_PARAMETER = re.compile(r"(api[-_]?)?key|(access[-_]?)?token|secret|password|sig(nature)?", re.IGNORECASE)
_GIVE = "set CUDAL2_API_KEY, or name a file that holds it with CUDAL2_API_KEY_FILE"
_EXAMPLE = "write it like http://127.0.0.1:8080/v1"


def resolve_key(
    *,
    api_key: SecretStr | None,
    api_key_file: Path | None,
    openai_key: SecretStr | None,
    base_url: str | None,
    emit: Emit,
) -> SecretStr | None:
    """The key to send: the setting's, else the file's, else OPENAI_API_KEY if the server is OpenAI's own.

    None for a server that is named by its address and needs no key. Raises: UsageError for a missing or invalid key.
    """
    if api_key is not None:
        return _checked(api_key.get_secret_value(), "CUDAL2_API_KEY")
    if api_key_file is not None:
        return _checked(_read(api_key_file, emit), f"key file {api_key_file}")
    if base_url is not None:
        return None
    if openai_key is None:
        raise UsageError(f"the chat policy needs a key for {OPENAI}: {_GIVE}; or name another server with --base-url")
    return _checked(openai_key.get_secret_value(), "OPENAI_API_KEY")


def checked_base_url(base_url: str | None) -> str:
    """The server's address; OpenAI's for None. Raises: UsageError, whose message omits an address that contains a key."""
    if base_url is None:
        return OPENAI
    try:
        parts = urlsplit(base_url.strip())
        has_port = parts.port is not None
    except ValueError:
        raise UsageError(f"base_url is not an address; {_EXAMPLE}") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"base_url contains a user name or a password; remove it and {_GIVE}")
    if any(_KEY_PARAMETER.fullmatch(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UsageError(f"base_url contains a key; remove it and {_GIVE}")
    if parts.scheme not in {"http", "https"} or not parts.hostname or (has_port and not parts.port):
        raise UsageError(f"base_url {base_url!r} is not an address; {_EXAMPLE}")
    return base_url.strip()


def is_local(base_url: str) -> bool:
    """Whether an address is on this machine: a loopback address, the unspecified one that servers print, or localhost."""
    host = (urlsplit(base_url).hostname or "").rstrip(".").partition("%")[0]
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        try:
            address = ipaddress.IPv4Address(socket.inet_aton(host))  # short forms, such as 127.1
        except OSError:
            return False
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_loopback or address.is_unspecified


def warn_of_plain_text(base_url: str, key: SecretStr | None, emit: Emit) -> None:
    """Emit a notice if the key is sent unencrypted to another machine."""
    if key is not None and urlsplit(base_url).scheme == "http" and not is_local(base_url):
        emit(Notice(message=f"the key for {base_url} is sent unencrypted; use https if the server supports it"))


def _read(path: Path, emit: Emit) -> str:
    try:
        content = path.expanduser().read_bytes()[: _MAX_FILE_BYTES + 1]
        mode = path.expanduser().stat().st_mode
    except OSError as exc:
        raise UsageError(f"key file {path} cannot be read: {exc.strerror}; {_GIVE}") from exc
    if mode & stat.S_IROTH:
        emit(Notice(message=f"key file {path} is readable by every user of this machine; run: chmod 600 {path}"))
    return content.decode("utf-8", errors="replace").removeprefix("\ufeff")


def _checked(text: str, source: str) -> SecretStr:
    """The key without surrounding white space. A header would refuse other characters and quote them in its error."""
    key = text.strip()
    if not key:
        raise UsageError(f"{source} is empty; put the server's key there, or unset it if the server needs none")
    if len(key) > _MAX_FILE_BYTES or not re.fullmatch(r"[!-~]+", key):
        raise UsageError(f"{source} is not a key: a key is one line of printable ASCII without spaces")
    return SecretStr(key)


MASK = "***"
_MIN_KEY_CHARS = 8
_PREFIX_CHARS = 12  # of a key at least twice as long: long enough to identify the key, too short to use it
_USERINFO = re.compile(r"(?<=://)[^/\s@\"'<>]{1,512}@")
# A filter on a handler would see every record, but handlers belong to the application. A logger's filter sees only the
# records that are logged to this logger itself.
_LOGGERS = (
    "httpcore2.connection",
    "httpcore2.http11",
    "httpcore2.http2",
    "httpcore2.proxy",
    "httpcore2.socks",
    "httpx2",
    "openai",
    "openai._base_client",
    "openai._response",
)


class Redactor:
    """Removes a key from a server's text before the text reaches an error, an event, a log or the store."""

    def __init__(self, key: SecretStr | None) -> None:
        plain = key.get_secret_value() if key else ""
        self._forms = _pattern(plain) if len(plain) >= _MIN_KEY_CHARS else None

    def __call__(self, text: str) -> str:
        if self._forms is not None:
            text = self._forms.sub(MASK, text)
        return _USERINFO.sub(f"{MASK}@", text)


class LogGuard(logging.Filter):
    """Redacts the log records of the packages that carry requests, at every level, until it is closed."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        super().__init__()
        self._redact = redact
        for name in _LOGGERS:
            logging.getLogger(name).addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = self._redact(record.getMessage()), ()
        return True

    def close(self) -> None:
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self)


def _pattern(key: str) -> re.Pattern[str]:
    forms = {key, json.dumps(key)[1:-1], quote(key, safe=""), quote_plus(key), *_base64_forms(key.encode())}
    longest_first = sorted((re.escape(form) for form in forms), key=len, reverse=True)
    if len(key) >= 2 * _PREFIX_CHARS:
        longest_first.append(re.escape(key[:_PREFIX_CHARS]) + r"[\w.~+/=*-]*")
    return re.compile("|".join(longest_first))


def _base64_forms(key: bytes) -> set[str]:
    """The base64 text of the key for each of the three alignments that it can have inside a longer text."""
    forms = set()
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        padded = bytes(before) + key
        whole = padded[: len(padded) // 3 * 3]
        forms |= {encode(whole).decode()[dropped:] for encode in (base64.b64encode, base64.urlsafe_b64encode)}
    return forms
