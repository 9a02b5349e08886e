"""Secrets among environment variables: detection of variables that hold one, and masking of their values in texts.

Each value is replaced by as many asterisks as it has characters, so that byte offsets into a log stay valid.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from jupyter_dlaas.wire.codec import Json

__all__ = [
    "NAMED_LENGTH_MIN",
    "NO_MASK",
    "SECRETS",
    "Mask",
    "is_secret",
    "mask_of",
    "named_secrets",
    "secret_values",
    "without_secrets",
]

SECRETS: Final = "DLAAS_SECRETS"
"""Name of the variable that lists the variables passed with `--secret`, separated by commas."""
LENGTH_MIN: Final = 6
"""Minimum length of a detected secret: shorter values occur in ordinary text, so only `--secret` masks them."""
NAMED_LENGTH_MIN: Final = 4
_STRONG: Final = (
    "TOKEN",
    "SECRET",
    "SECRETS",
    "PASSWORD",
    "PASSWD",
    "PASSPHRASE",
    "CREDENTIAL",
    "CREDENTIALS",
    "APIKEY",
)
_PAIRS: Final = frozenset({("API", "KEY"), ("ACCESS", "KEY"), ("PRIVATE", "KEY")})
_WEAK: Final = frozenset({"KEY", "PASS", "PWD", "PAT", "AUTH", "DSN"})
_NO_SECRETS: Final = frozenset(
    {"FILE", "PATH", "DIR", "FOLDER", "HOME", "URL", "URI", "SOCK", "SOCKET", "NAME", "USER", "TTL", "TIMEOUT"}
    | {"EXPIRES", "EXPIRY", "LIMIT", "LENGTH", "ENABLED"}
)
"""Last words of names that say that the value is not the secret itself."""
_WORD: Final = re.compile(r"[^A-Z0-9]+")
_PLAIN: Final = re.compile(r"\d+|true|false|none|null|enabled|disabled|default", re.IGNORECASE)
_DIGIT: Final = re.compile(r"\d")
_LETTER: Final = re.compile(r"[A-Za-z]")
_PATH: Final = re.compile(r"~?/[\w.\-/ ]+")
_IN_URL: Final = re.compile(r"\b[a-z][a-z0-9+.-]*://[^/\s:@]*:([^/\s@]+)@", re.IGNORECASE)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable seems to hold a secret as its whole value, by its name and the value's form."""
    words = [word for word in _WORD.split(name.upper()) if word]
    if not words or name == SECRETS or words[-1] in _NO_SECRETS or len(value) < LENGTH_MIN:
        return False
    if any(word.endswith(_STRONG) for word in words) or not _PAIRS.isdisjoint(pairwise(words)):
        is_path = "CREDENTIAL" in name.upper() and _PATH.fullmatch(value) is not None
        is_number = _PLAIN.fullmatch(value) is not None and "PASS" not in name.upper()
        return not is_path and not is_number
    if words[-1] not in _WEAK or len(value) < 8 or value.startswith(("/", "~", ".")):
        return False
    # For example, SORT_KEY=name is an ordinary variable, and KAGGLE_KEY=0a1b2c3d is a secret.
    return _DIGIT.search(value) is not None and _LETTER.search(value) is not None


def named_secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names that were passed with `--secret` in this environment."""
    return tuple(filter(None, environment.get(SECRETS, "").split(",")))


def secret_values(environment: Mapping[str, str]) -> list[str]:
    """Return the secrets of an environment: values of named or secret-looking variables, and passwords in URLs."""
    named = set(named_secrets(environment))
    found: set[str] = set()
    for name, value in environment.items():
        if name in named or is_secret(name, value):
            found.add(value)
        elif "://" in value:
            found |= {part for part in _IN_URL.findall(value) if len(part) >= LENGTH_MIN}
    return sorted(value for value in found if len(value) >= NAMED_LENGTH_MIN)


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without its secrets, for processes that outlive the job or need none of them."""
    named, values = set(named_secrets(environment)), set(secret_values(environment))
    return {
        name: value
        for name, value in environment.items()
        if name not in named and value not in values and not values.intersection(_IN_URL.findall(value))
    }


@dataclass(frozen=True, slots=True)
class Mask:
    """Secrets of one job in all forms in which a text may contain them, the longest first."""

    forms: tuple[str, ...]

    @property
    def longest_bytes(self) -> int:
        """Length in bytes of the longest form in UTF-8."""
        return max((len(form.encode(errors="surrogatepass")) for form in self.forms), default=0)

    def text(self, text: str) -> str:
        """Return the text with each secret replaced by asterisks."""
        for form in self.forms:
            if form in text:
                text = text.replace(form, "*" * len(form))
        return text

    def json(self, value: Json) -> Json:
        """Return a JSON value with all strings masked. Keys stay unchanged."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.json(part) for part in value]
        if isinstance(value, dict):
            return {key: self.json(part) for key, part in value.items()}
        return value

    def data(self, data: bytes) -> bytes:
        """Return UTF-8 bytes of equal length with each secret replaced by asterisks."""
        places = self.places(data)
        if not places:
            return data
        masked = bytearray(data)
        for start, end in places:
            masked[start:end] = b"*" * (end - start)
        return bytes(masked)

    def places(self, data: bytes) -> list[tuple[int, int]]:
        """Return the positions of secrets: first byte, and the byte after the last."""
        found: list[tuple[int, int]] = []
        for form in self.forms:
            needle = form.encode(errors="surrogatepass")
            at = data.find(needle)
            while at >= 0:
                found.append((at, at + len(needle)))
                at = data.find(needle, at + len(needle))
        return found

    def unfinished(self, data: bytes) -> int:
        """Return the number of bytes at the end that may be the beginning of a secret."""
        longest = 0
        for form in self.forms:
            needle = form.encode(errors="surrogatepass")
            for size in range(min(len(needle) - 1, len(data)), NAMED_LENGTH_MIN - 1, -1):
                if data.endswith(needle[:size]):
                    longest = max(longest, size)
                    break
        return longest


NO_MASK: Final = Mask(())


def mask_of(environment: Mapping[str, str]) -> Mask:
    """Return the mask of an environment's secrets."""
    values = secret_values(environment)
    return _mask(tuple(values)) if values else NO_MASK


@functools.lru_cache(maxsize=1024)
def _mask(values: tuple[str, ...]) -> Mask:
    return Mask(tuple(sorted(_forms(values), key=lambda form: (-len(form), form))))


def _forms(values: Iterable[str]) -> set[str]:
    """Return each secret plain, as in JSON, `repr` and URLs, and each line of a multi-line one (a private key)."""
    found: set[str] = set()
    for value in values:
        parts = [value, *(line.strip() for line in value.splitlines() if len(line.strip()) >= 8)]
        for part in parts:
            found.add(part)
            if not part.isalnum():
                from urllib.parse import quote, quote_plus  # learners rarely need this import

                found |= {json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1], repr(part)[1:-1]}
                found |= {quote(part, safe="", errors="replace"), quote_plus(part, errors="replace")}
    return found
