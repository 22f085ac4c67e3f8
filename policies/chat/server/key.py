"""The key of a chat server: where it comes from, and that it goes nowhere but into the request's header.

Covered: the key in plain, as JSON, URL-quoted and base64 text, by itself or inside a longer text; a key that a server
cuts short; names and passwords in addresses. Not covered: a key shorter than eight characters, which is a placeholder
(servers without keys want one): taking `none` out of a reply would break code.
"""

import base64
import json
import re
import stat
from pathlib import Path
from urllib.parse import parse_qsl, quote, quote_plus, urlsplit

from pydantic import SecretStr

from contract.errors import UsageError
from contract.events import Emit, Notice

OPENAI = "https://api.openai.com/v1"
MASK = "***"
_SHORTEST = 8
_PREFIX = 12  # of a key at least twice as long: enough to be one, too little to be of use to a reader
_LONGEST_FILE = 16 * 1024
_USERINFO = re.compile(r"(?<=://)[^/\s@\"'<>]{1,512}@")
_KEY_PARAMETER = re.compile(r"(api[-_]?)?key|(access[-_]?)?token|secret|password|sig(nature)?", re.IGNORECASE)
_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_GIVE = "set CUDAL2_API_KEY, or name a file that holds it with CUDAL2_API_KEY_FILE"


class Redactor:
    """Takes a key out of text that came from a server, before it reaches an error, an event, a log or the store."""

    def __init__(self, key: SecretStr | None) -> None:
        plain = key.get_secret_value() if key else ""
        self._forms = _pattern(plain) if len(plain) >= _SHORTEST else None

    def __call__(self, text: str) -> str:
        if self._forms is not None:
            text = self._forms.sub(MASK, text)
        return _USERINFO.sub(f"{MASK}@", text)


def resolve_key(
    *,
    api_key: SecretStr | None,
    api_key_file: Path | None,
    openai_key: SecretStr | None,
    base_url: str | None,
    emit: Emit,
) -> SecretStr | None:
    """The key to send: the setting's, else the file's, else OPENAI_API_KEY's where the server is OpenAI's own.

    None for a server named by its address that needs none. Raises: UsageError where a key is needed or cannot be one.
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
    """The address to ask, OpenAI's own for None. Raises: UsageError, without the address where it carries a key."""
    if base_url is None:
        return OPENAI
    try:
        parts = urlsplit(base_url.strip())
        has_port = parts.port is not None
    except ValueError:
        raise UsageError("base_url is no address; write it like http://127.0.0.1:8080/v1") from None
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"base_url carries a name or a password; take it out and {_GIVE}")
    if any(_KEY_PARAMETER.fullmatch(name) for name, _ in parse_qsl(parts.query, keep_blank_values=True)):
        raise UsageError(f"base_url carries a key; take it out and {_GIVE}")
    if parts.scheme not in {"http", "https"} or not parts.hostname or (has_port and not parts.port):
        raise UsageError(f"base_url {base_url!r} is no address; write it like http://127.0.0.1:8080/v1")
    return base_url.strip()


def is_local(base_url: str) -> bool:
    """Whether an address is this machine's own."""
    return (urlsplit(base_url).hostname or "") in _LOCAL


def warn_of_plain_text(base_url: str, key: SecretStr | None, emit: Emit) -> None:
    """Say so where the key would travel unencrypted to another machine."""
    if key is not None and urlsplit(base_url).scheme == "http" and not is_local(base_url):
        emit(Notice(message=f"the key of {base_url} travels unencrypted; use https where the server has it"))


def _read(path: Path, emit: Emit) -> str:
    try:
        content = path.expanduser().read_bytes()[: _LONGEST_FILE + 1]
        mode = path.expanduser().stat().st_mode
    except OSError as exc:
        raise UsageError(f"key file {path} cannot be read: {exc.strerror}; {_GIVE}") from exc
    if mode & stat.S_IROTH:
        emit(Notice(message=f"key file {path} can be read by every user of this machine; chmod 600 {path}"))
    return content.decode("utf-8", errors="replace").removeprefix("\ufeff")


def _checked(text: str, source: str) -> SecretStr:
    """The key without surrounding white space. A header would refuse other characters and name them in its error."""
    key = text.strip()
    if not key:
        raise UsageError(f"{source} is empty; put the chat server's key there, or leave it out where the server needs none")
    if len(key) > _LONGEST_FILE or not re.fullmatch(r"[!-~]+", key):
        raise UsageError(f"{source} holds no key: a key is one line of printable ASCII without spaces")
    return SecretStr(key)


def _pattern(key: str) -> re.Pattern[str]:
    forms = {key, json.dumps(key)[1:-1], quote(key, safe=""), quote_plus(key), *_base64_forms(key.encode())}
    longest_first = sorted((re.escape(form) for form in forms), key=len, reverse=True)
    if len(key) >= 2 * _PREFIX:
        longest_first.append(re.escape(key[:_PREFIX]) + r"[\w.~+/=*-]*")
    return re.compile("|".join(longest_first))


def _base64_forms(key: bytes) -> set[str]:
    """What base64 makes of the key at each of the three places it may begin at within a longer text."""
    forms = set()
    for before, dropped in ((0, 0), (1, 2), (2, 3)):
        padded = bytes(before) + key
        whole = padded[: len(padded) // 3 * 3]
        forms |= {encode(whole).decode()[dropped:] for encode in (base64.b64encode, base64.urlsafe_b64encode)}
    return forms
