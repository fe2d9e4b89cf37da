"""Bearer tokens and their roles."""

import hmac
import re
from collections.abc import Iterable
from enum import Enum
from hashlib import sha256
from pathlib import Path

from gem_server.security.watched_files import UnusableFileError, read_text

MIN_CHARACTERS = 16
# gRPC limits metadata to 8 KiB.
MAX_CHARACTERS = 1024
# RFC 6750, section 2.1.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


class Role(Enum):
    """A caller's role."""

    WORKER = "worker"
    OBSERVER = "observer"
    OPERATOR = "operator"


class Tokens:
    """Tokens, stored as digests."""

    def __init__(self, tokens: Iterable[tuple[Role, str]]) -> None:
        self._digests = [(role, sha256(token.encode()).digest()) for role, token in tokens]

    def role_of(self, token: str) -> Role | None:
        """The token's role, in constant time."""
        digest = sha256(token.encode("utf-8", "surrogateescape")).digest()
        found: Role | None = None
        for role, known in self._digests:
            if hmac.compare_digest(known, digest):
                found = role
        return found


def read_tokens(path: Path) -> Tokens:
    """Read lines of `ROLE TOKEN`. Raises UnusableFileError, which never quotes the file."""
    found: dict[str, Role] = {}
    for number, line in enumerate(read_text(path, "tls.tokens").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"tls.tokens {path}, line {number}"
        if len(words) != 2:
            raise UnusableFileError(f"{where}: write a role and a token, as in: worker TOKEN")
        roles = [role for role in Role if role.value == words[0]]
        if not roles:
            raise UnusableFileError(f"{where}: the first word is no role; use worker, observer or operator")
        if not MIN_CHARACTERS <= len(words[1]) <= MAX_CHARACTERS or not _TOKEN.fullmatch(words[1]):
            raise UnusableFileError(
                f"{where}: a token has {MIN_CHARACTERS} to {MAX_CHARACTERS} letters, digits and . _ ~ + / - (and = at "
                "its end); make one with: openssl rand -hex 32"
            )
        if found.setdefault(words[1], roles[0]) is not roles[0]:
            raise UnusableFileError(f"{where}: that token stands there for another role already; make one for each")
    if not found:
        raise UnusableFileError(f"tls.tokens {path} holds no token: add a line, as in: worker TOKEN")
    return Tokens((role, token) for token, role in found.items())
