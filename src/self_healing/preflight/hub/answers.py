"""What the Hub may answer, told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """What became of a question."""

    FOUND = "found"
    MISSING = "missing"
    """The Hub says that there is none; what is private and not ours looks the same to it."""
    HIDDEN = "missing or private"
    """Not to be told apart without a token, or with one that may not see it."""
    NO_REVISION = "no such revision"
    NO_FILE = "no such file"
    GATED = "gated"
    """It is there, but its terms were not accepted by this account."""
    FORBIDDEN = "forbidden"
    """The token is good, but may not read this."""
    DISABLED = "disabled"
    WRONG_TOKEN = "wrong token"  # noqa: S105  # the name of a state
    NO_TOKEN = "no token"  # noqa: S105
    # No answer: nothing can be said about what was asked for.
    OFFLINE = "offline"
    RATE_LIMITED = "rate-limited"
    SERVER_ERROR = "server error"
    TIMEOUT = "timeout"
    BAD_ANSWER = "bad answer"
    NO_CLIENT = "no client"


UNANSWERED = frozenset(
    {State.OFFLINE, State.RATE_LIMITED, State.SERVER_ERROR, State.TIMEOUT, State.BAD_ANSWER, State.NO_CLIENT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Repository:
    """A repository of the Hub."""

    id: str
    """Its name today, which after a renaming is another than the one that was asked for."""
    sha: str = ""
    """The commit of the revision that was asked for."""
    gated: bool = False
    private: bool = False
    last_modified: str = ""
    files: tuple[str, ...] = ()
    card: Mapping[str, Any] = field(default_factory=dict)
    """The YAML head of its README."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Everything the Hub says of it: `safetensors`, `config`, `tags`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a question."""

    state: State
    detail: str = ""
    """Where there is no answer: why, and what would help. Else what the Hub adds."""
    repository: Repository | None = None
    body: bytes = b""
    """The content of a file."""

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing can be said."""
        return self.state in UNANSWERED

    def in_words(self, file: str, revision: str | None = None) -> str:
        """Say what became of the question for a file of a model."""
        match self.state:
            case State.FOUND:
                return f"the Hub has a {file} of it"
            case State.OFFLINE | State.NO_CLIENT:
                return f"the Hub could not be asked ({self.detail})"
            case State.NO_FILE:
                return f"the Hub has no {file} of it"
            case State.NO_REVISION:
                return f"the Hub has no revision {revision} of it"
            case State.MISSING | State.HIDDEN | State.WRONG_TOKEN:
                return "the Hub has no such model that may be seen from here"
            case State.GATED | State.FORBIDDEN:
                return f"the Hub does not give its {file} away without a token that may read it (set HF_TOKEN)"
            case State.DISABLED:
                return "the Hub has disabled it"
        return f"the Hub gave no answer ({self.detail})"


@dataclass(frozen=True, slots=True)
class Listing:
    """The repositories of an author, or those that a search finds; empty where the Hub did not answer."""

    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class References:
    """The branches and tags of a repository; empty where the Hub did not answer."""

    branches: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Whose token it is, and what it may do."""

    state: State
    detail: str = ""
    name: str = ""
    role: str = ""
    """`read`, `write` or `fineGrained`; empty where the Hub does not say."""
    organizations: Mapping[str, str] = field(default_factory=dict)
    """By name the role of the user in it; an empty role is one that is not known."""
    may_write_to: frozenset[str] | None = None
    """Of a token with single permissions: the accounts and repositories it may write to; None where that is not known."""

    @property
    def is_unanswered(self) -> bool:
        """Whether nothing can be said."""
        return self.state in UNANSWERED
