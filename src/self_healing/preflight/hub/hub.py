"""Questions to the Hub: each is asked once in a run, all of them side by side, and none is waited for without end."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as TooLate
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import quote

from .answers import Answer, Listing, References, Repository, State, User
from .wire import Reply, Wire

T = TypeVar("T")
SMALL_FILES = frozenset({"config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"})
"""What is fetched of a model; never its weights, nor the vocabulary, which has many megabytes."""
RepositoryKind = Literal["model", "dataset"]
AT_ONCE = 16
LIMIT_S = 5.0
LONGEST_LISTING = 500
LONGEST_NAME = 300
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?")
"""Of a repository; a path is none."""


def is_name(text: str) -> bool:
    """Say whether a text may be the name of a repository."""
    return _NAME.fullmatch(text) is not None


class Asked(Generic[T]):
    """A question that is on its way."""

    def __init__(self, future: Future[T], patience_s: float, instead: T) -> None:
        self._future, self._instead = future, instead
        self._until = time.monotonic() + patience_s

    def answer(self) -> T:
        """Wait for the answer, though not for long."""
        try:
            return self._future.result(max(0.0, self._until - time.monotonic()))
        except TooLate:
            return self._instead


class Hub:
    """The Hub of `HF_ENDPOINT`, with the token of the environment. Making one asks nothing and imports nothing."""

    def __init__(self, environ: Mapping[str, str], *, offline: bool = False, limit_s: float = LIMIT_S) -> None:
        self._wire = Wire(environ, limit_s)
        self._is_off = offline
        self._asked: dict[tuple[str, ...], Future[Any]] = {}
        self._lock = threading.Lock()
        self._doors = threading.Semaphore(AT_ONCE)
        # connecting, reading and, of a refused token or a gated repository, once more; the rest is a margin
        self._patience_s = 3 * limit_s
        self._down: Reply | None = None

    @property
    def endpoint(self) -> str:
        """The address of the Hub."""
        return self._wire.endpoint

    @property
    def has_token(self) -> bool:
        """Whether a token is set."""
        return self._wire.token is not None

    @property
    def token_source(self) -> str:
        """The variable or file that the token is from."""
        return self._wire.token_source

    # -- questions -----------------------------------------------------------------------------------

    def repository(self, kind: RepositoryKind, name: str, revision: str | None = None) -> Asked[Answer]:
        """Ask for a repository; of one that is gated also whether its files may be read."""
        path = f"/api/{kind}s/{quote(name)}"
        if revision is not None:
            path += f"/revision/{quote(revision, safe='')}"
        return self._ask(
            ("repository", path),
            lambda: self._repository(kind, path),
            Answer(state=State.TIMEOUT, detail=self._too_late),
        )

    def file(self, kind: RepositoryKind, name: str, path: str, revision: str | None = None) -> Asked[Answer]:
        """Ask for a small file: configs and the like, nothing that holds weights or data."""
        prefix = "datasets/" if kind == "dataset" else ""
        where = f"/{prefix}{quote(name)}/resolve/{quote(revision or 'main', safe='')}/{quote(path)}"
        return self._ask(("file", where), lambda: self._file(where), Answer(state=State.TIMEOUT, detail=self._too_late))

    def fetch_config(self, name: str, revision: str | None = None) -> Mapping[str, Any] | None:
        """Return the config.json of a model."""
        return self.fetch_json(name, "config.json", revision)

    def fetch_json(self, name: str, file: str, revision: str | None = None) -> Mapping[str, Any] | None:
        """Return a config or tokenizer file of a model, asked for once; None where it cannot be had, for whatever reason."""
        answer = self._model_file(name, file, revision)
        content = _parsed(answer.body) if answer is not None and answer.state is State.FOUND else None
        return content if isinstance(content, dict) else None

    def said_of(self, name: str, file: str, revision: str | None = None) -> str:
        """Return in words what became of the question for a file of a model."""
        answer = self._model_file(name, file, revision)
        if answer is None:
            return "the Hub was not asked, since this is no name of it"
        is_odd = answer.state is State.FOUND and self.fetch_json(name, file, revision) is None
        return answer.in_words(file, revision) + (", which is no JSON object" if is_odd else "")

    def _model_file(self, name: str, file: str, revision: str | None) -> Answer | None:
        assert file in SMALL_FILES, f"{file} is none that is fetched of a model"
        return self.file("model", name, file, revision).answer() if is_name(name) else None

    def by_author(self, kind: RepositoryKind, author: str) -> Asked[Listing]:
        """Ask what an author has, the most used first."""
        return self._listing(kind, {"author": author})

    def by_search(self, kind: RepositoryKind, words: str) -> Asked[Listing]:
        """Ask for names that hold the words, the most used first."""
        return self._listing(kind, {"search": words})

    def references(self, kind: RepositoryKind, name: str) -> Asked[References]:
        """Ask for branches and tags."""
        path = f"/api/{kind}s/{quote(name)}/refs"
        return self._ask(("refs", path), lambda: _references(self._json(path)), References())

    def user(self) -> Asked[User]:
        """Ask whose token it is."""
        return self._ask(("user",), self._user, User(state=State.TIMEOUT, detail=self._too_late))

    # -- answers -------------------------------------------------------------------------------------

    def _repository(self, kind: RepositoryKind, path: str) -> Answer:
        reply = self._get(path)
        if reply.state is not State.FOUND:
            return Answer(state=reply.state, detail=reply.detail)
        if reply.is_elsewhere:
            return Answer(state=State.BAD_ANSWER, detail="the Hub passes the question on to another host")
        repository = _read_repository(_parsed(reply.body))
        if repository is None:
            return Answer(state=State.BAD_ANSWER, detail="the answer is none of a Hub; look at HF_ENDPOINT")
        if repository.gated:
            access = self._get(f"/api/{kind}s/{quote(repository.id)}/auth-check")
            if access.state in (State.GATED, State.HIDDEN, State.FORBIDDEN):
                return Answer(state=State.GATED, detail=access.detail, repository=repository)
            if access.state not in (State.FOUND, State.MISSING):  # a mirror may not know the question
                return Answer(state=access.state, detail=access.detail, repository=repository)
        return Answer(state=State.FOUND, repository=repository)

    def _file(self, path: str) -> Answer:
        reply = self._get(path)
        return Answer(state=reply.state, detail=reply.detail, body=reply.body if reply.state is State.FOUND else b"")

    def _listing(self, kind: RepositoryKind, wanted: Mapping[str, str]) -> Asked[Listing]:
        params = {**wanted, "sort": "downloads", "direction": "-1", "limit": str(LONGEST_LISTING)}
        path = f"/api/{kind}s"
        return self._ask(
            ("listing", path, *wanted, *wanted.values()), lambda: _listing(self._json(path, params)), Listing()
        )

    def _user(self) -> User:
        if not self.has_token:
            return User(state=State.NO_TOKEN)
        reply = self._once("/api/whoami-v2", None, with_token=True)
        if reply.state in (State.HIDDEN, State.WRONG_TOKEN):
            return User(state=State.WRONG_TOKEN, detail=reply.detail)
        if reply.state is not State.FOUND:
            return User(state=reply.state, detail=reply.detail)
        return _read_user(_parsed(reply.body)) or User(
            state=State.BAD_ANSWER, detail="the answer is none of a Hub; look at HF_ENDPOINT"
        )

    # -- asking --------------------------------------------------------------------------------------

    @property
    def _too_late(self) -> str:
        return f"the Hub gave no answer within {self._patience_s:g} s"

    def _ask(self, key: tuple[str, ...], ask: Callable[[], T], instead: T) -> Asked[T]:
        with self._lock:
            future = self._asked.get(key)
            if future is None:
                future = self._asked[key] = Future()
                # daemons: a server that drips its answer must not hold up the end of the program
                threading.Thread(target=self._fulfil, args=(future, ask), name="self-healing-hub", daemon=True).start()
        return Asked(future, self._patience_s, instead)

    def _fulfil(self, future: Future[T], ask: Callable[[], T]) -> None:
        with self._doors:
            try:
                future.set_result(ask())
            except Exception as error:  # noqa: BLE001  # a bug of ours: raised where the answer is asked for
                future.set_exception(error)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> Reply:
        """Ask; where the token is refused once more without it, since most of the Hub is open to all."""
        reply = self._once(path, params, with_token=True)
        return self._once(path, params, with_token=False) if reply.state is State.WRONG_TOKEN else reply

    def _once(self, path: str, params: Mapping[str, str] | None, *, with_token: bool) -> Reply:
        if self._is_off:
            return Reply(state=State.OFFLINE, detail="--offline is given; leave it out")
        if self._down is not None:
            return self._down
        reply = self._wire.get(path, params, with_token=with_token)
        if reply.state in (State.OFFLINE, State.NO_CLIENT):  # the next question would fare no better
            self._down = reply
        return reply

    def _json(self, path: str, params: Mapping[str, str] | None = None) -> object:
        reply = self._get(path, params)
        return _parsed(reply.body) if reply.state is State.FOUND and not reply.is_elsewhere else None


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _text(value: object) -> str:
    """Return a name; a text that is too long to be one is none."""
    return value if isinstance(value, str) and len(value) <= LONGEST_NAME else ""


def _read_repository(content: object) -> Repository | None:
    """Read what the Hub says of a repository, of which nothing but its name has to be there."""
    if not isinstance(content, dict) or not _text(content.get("id")):
        return None
    siblings, card = content.get("siblings"), content.get("cardData")
    files = [each.get("rfilename") for each in siblings if isinstance(each, dict)] if isinstance(siblings, list) else []
    return Repository(
        id=content["id"], sha=_text(content.get("sha")), gated=bool(content.get("gated")),
        private=content.get("private") is True, last_modified=_text(content.get("lastModified")),
        files=tuple(file for file in files if isinstance(file, str)), card=card if isinstance(card, dict) else {},
        raw=content,
    )  # fmt: skip


def _listing(content: object) -> Listing:
    found = [_text(each.get("id")) for each in content if isinstance(each, dict)] if isinstance(content, list) else []
    return Listing(tuple(name for name in found if name)[:LONGEST_LISTING])


def _references(content: object) -> References:
    if not isinstance(content, dict):
        return References()

    def names(key: str) -> tuple[str, ...]:
        listed = content.get(key)
        found = (
            [_text(each.get("name")) for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
        )
        return tuple(name for name in found if name)

    return References(names("branches"), names("tags"))


def _read_user(content: object) -> User | None:
    if not isinstance(content, dict) or not _text(content.get("name")):
        return None
    listed = content.get("orgs")
    organizations = {
        _text(each.get("name")): _text(each.get("roleInOrg"))
        for each in (listed if isinstance(listed, list) else [])
        if isinstance(each, dict) and _text(each.get("name"))
    }
    auth = content.get("auth")
    token = auth.get("accessToken") if isinstance(auth, dict) else None
    token = token if isinstance(token, dict) else {}
    return User(
        state=State.FOUND, name=content["name"], role=_text(token.get("role")), organizations=organizations,
        may_write_to=_writable(token.get("fineGrained")),
    )  # fmt: skip


def _writable(permissions: object) -> frozenset[str] | None:
    """Return the names that a token with single permissions may write to."""
    scoped = permissions.get("scoped") if isinstance(permissions, dict) else None
    if not isinstance(scoped, list):
        return None
    found = set()
    for each in scoped:
        entity = each.get("entity") if isinstance(each, dict) else None
        granted = each.get("permissions") if isinstance(each, dict) else None
        if not isinstance(entity, dict) or not isinstance(granted, list):
            return None  # a shape that is not known here: nothing is concluded from it
        if "repo.write" in granted:
            found.add(_text(entity.get("name")))
    return frozenset(found)
