"""Keep secrets out of records, and terminal escapes off people's screens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

MASK = "***"
"""What stands in a record where a secret stood."""

_SHORTEST_SECRET = 8
_STANDS_IN = ("your", "token", "example", "placeholder", "xxxx", "secret", "here")
_REMEMBERED_KEYS = 4096
_SECRET_VARIABLE = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$", re.IGNORECASE)

# --- keys of mappings -------------------------------------------------------------------------------------------

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SECRET_WORDS = frozenset(
    [
        "secret",
        "secrets",
        "password",
        "passwords",
        "passwd",
        "pwd",
        "passphrase",
        "apikey",
        "apikeys",
        "authorization",
        "credential",
        "credentials",
        "cookie",
        "privatekey",
        "accesskey",
        "secretkey",
    ]
)
_SECRET_KEYS = frozenset(
    ["api", "private", "access", "secret", "signing", "encryption", "ssh", "account", "auth", "session", "master"]
)
"""The words that turn a following `key` into a secret; `sort_key`, `metric_key` and plain `key` are not."""
_TOKEN_OF_TEXT = frozenset(
    [
        "pad",
        "eos",
        "bos",
        "unk",
        "sep",
        "cls",
        "mask",
        "image",
        "video",
        "audio",
        "special",
        "stop",
        "start",
        "end",
        "next",
        "last",
        "first",
        "per",
        "each",
        "prompt",
        "boundary",
        "decoder",
        "forced",
        "new",
        "vocab",
        "response",
        "completion",
        "by",
    ]
)
"""The words that make a following `token` a piece of text: `pad_token`, `loss_per_token`."""


def _secrecy_of(key: str) -> str:
    """Return `token` or `secret` where a mapping key announces one, else an empty string."""
    words = [word.lower() for word in _WORD.findall(key)]
    if words[-1:] == ["id"] and len(words) > 1 and words[-2] == "key":
        words.pop()
    if not words:
        return ""
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if last in _SECRET_WORDS or (last in ("key", "keys") and before in _SECRET_KEYS):
        return "secret"
    return "token" if last == "token" and before not in _TOKEN_OF_TEXT else ""


def _hidden(value: object, secrecy: str) -> bool:
    """Say whether a value under a secret key is masked; flags, unset values and counts of tokens tell nothing."""
    if value is None or value == "" or isinstance(value, bool | float):
        return False
    return secrecy == "secret" or not isinstance(value, int)


# --- secrets inside text ----------------------------------------------------------------------------------------
# Every pattern is linear: it starts at a literal, its quantifiers are bounded or possessive, and an unbounded run
# cannot start again inside itself (a look-behind refuses the run's own characters).

_PRIVATE_SCHEMES = (
    "tgram|telegram|slack|discord|pover|pbul|ntfys?|gotifys?|msteams|workflows?|rocket|rockets|matrixs?|ifttt|twilio|"
    "mmosts?|gchat|guilded|line|opsgenie|pagerduty|pagertree|prowl|join|mailgun|sendgrid|resend|mailtos?|zulip|webex|"
    "wxteams|signals?|whatsapp|barks?|lark|feishu|dingtalk|wecombot|schan|fcm|sns|ses|vonage|nexmo|plivo|sinch|twist|"
    "ryver|revolt|pushy|pushed|pushme|pushdeer|pushsafer|pushover|simplepush|spush|techulus|synologys?|hassios?"
)
_SHAPES = (
    r"hf_[A-Za-z0-9]{16,}+",
    r"api_org_[A-Za-z0-9]{16,}+",
    r"sk-(?=[A-Za-z_-]{0,40}\d)[A-Za-z0-9_-]{16,}+",
    r"gh[pousr]_[A-Za-z0-9]{16,}+",
    r"github_pat_[A-Za-z0-9_]{16,}+",
    r"glpat-[\w-]{16,}+",
    r"xox[a-z]-[A-Za-z0-9-]{10,}+",
    r"xapp-[A-Za-z0-9-]{10,}+",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    r"AIza[\w-]{30,}+",
    r"ya29\.[\w-]{20,}+",
    r"wandb_v1_[\w-]{20,}+",
    r"npm_[A-Za-z0-9]{30,}+",
    r"pypi-[\w-]{40,}+",
    r"nvapi-[\w-]{30,}+",
    r"(?:gsk|r8)_[A-Za-z0-9]{30,}+",
    r"SG\.[\w-]{16,80}+\.[\w-]{16,}+",
    r"bot\d{6,12}:[\w-]{30,}+",
)
_TOKEN = re.compile(r"(?<![A-Za-z0-9])(?:" + "|".join(_SHAPES) + ")")
_AFTER = r"[\"']?\s{0,4}[:=]\s{0,4}[\"']?"
"""What stands between a name and its value: `password: x`, `"token"="x"`."""


class _Rule(NamedTuple):
    """One kind of secret in text."""

    hints: tuple[str, ...]
    """Lower-case text without any of these cannot match, which is much cheaper to see than to search for it."""
    pattern: re.Pattern[str]
    replacement: str


def _rule(hints: str, pattern: str, replacement: str = rf"\1{MASK}", *, any_case: bool = True) -> _Rule:
    """Return a rule with its hints given as words."""
    return _Rule(tuple(hints.split()), re.compile(pattern, re.IGNORECASE if any_case else 0), replacement)


_RULES = (
    _rule(
        "-----begin",
        r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----)[^-]*+(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?",
    ),
    _rule("://", rf"(?<![A-Za-z0-9])((?:{_PRIVATE_SCHEMES})://)[^\s\"'<>]++"),
    _rule("://", r"(://)[^\s/\"'<>]*@", rf"\1{MASK}@"),
    _rule(
        "? &",
        r"([?&][\w.-]{0,40}(?:token|key|secret|password|passwd|pwd|signature|sig|auth|credential)=)[^\s&#\"'<>]++",
    ),
    _rule(
        "hooks.slack discord webhook.office",
        r"(hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/webhooks/"
        r"|webhook\.office\.com/)[^\s\"'<>]++",
    ),
    _rule(
        "hf_ api_org_ sk- ghp_ gho_ ghu_ ghs_ ghr_ github_pat_ glpat- xox xapp- akia asia aiza ya29. wandb_v1_ npm_ "
        "pypi- nvapi- gsk_ r8_ sg. bot",
        _TOKEN.pattern,
        MASK,
        any_case=False,
    ),
    _rule("eyj", r"(?<![\w-])eyJ[\w-]{8,}+\.[\w-]{8,}+\.?[\w-]*+", MASK, any_case=False),
    _rule("wandb", r"(wandb[^\n]{0,80}?(?<![0-9a-f]))[0-9a-f]{40}(?![0-9a-f])"),
    _rule("bearer", r"(?<![A-Za-z0-9])(bearer\s{1,4})[\w.~+/=-]{8,}+"),
    _rule("authorization", rf"(authorization{_AFTER}(?:(?:bearer|basic|token|digest)\s{{1,4}})?+)[^\s\"',;*]{{6,}}+"),
    _rule(
        "passw pwd passphrase secret key",
        r"((?:password|passwd|pwd|passphrase|secret|(?:api|private|access|secret)[_-]?key)"
        rf"{_AFTER})(?!\.\.\.|os\.(?:environ|getenv))[^\s\"',;&]{{4,}}+",  # what stands in for a value, or says where it comes from, is none
    ),
    _rule("token", rf"(token{_AFTER})(?=[A-Za-z+/=_.-]{{0,64}}\d)[\w+/=.-]{{16,}}+"),
    # A plain key= is often a name ("key=step-00001000"): only hexadecimal or mixed-case noise is a secret.
    _rule(
        "key",
        rf"((?<![A-Za-z0-9])(?i:key){_AFTER})(?:[0-9a-f]{{32,}}+"
        r"|(?=[^A-Z\s]{0,64}[A-Z])(?=[^a-z\s]{0,64}[a-z])(?=[^0-9\s]{0,64}[0-9])[\w+/=-]{20,}+)",
        any_case=False,
    ),
)


class Masker:
    """Replaces secrets by `***`: those in the environment, those given, those that look like one, those under a telling key.

    Example:
        >>> Masker({"HF_TOKEN": "not-a-usual-shape"}).text("failed with not-a-usual-shape")
        'failed with ***'
    """

    def __init__(self, environ: Mapping[str, str], secrets: Iterable[str] = ()) -> None:
        """Learn the secrets that the given environment holds, and others that are known."""
        known = {form for name, value in environ.items() for form in _forms_of(name, value)}
        known |= {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        longest_first = sorted(known, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if known else None
        self._keys: dict[str, tuple[str, str]] = {}

    def text(self, text: str) -> str:
        """Return the text with its secrets masked."""
        if self._known is not None:
            text = self._known.sub(MASK, text)
        lowered = text.lower()
        for hints, pattern, replacement in _RULES:
            for hint in hints:
                if hint in lowered:
                    text = pattern.sub(replacement, text)
                    break
        return text

    def value(self, value: object) -> object:
        """Return plain data (mappings, lists, tuples, strings) with its secrets masked; all else stays as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return dict(self._item(key, item) for key, item in value.items())
        if isinstance(value, tuple):
            return tuple([self.value(item) for item in value])
        return [self.value(item) for item in value] if isinstance(value, list) else value

    def _item(self, key: object, value: object) -> tuple[object, object]:
        """Mask one item of a mapping."""
        if not isinstance(key, str):
            return key, self.value(value)
        shown, secrecy = self._keys.get(key) or self._learn(key)
        if secrecy and _hidden(value, secrecy):
            return shown, MASK
        return shown, value if type(value) is float else self.value(value)

    def _learn(self, key: str) -> tuple[str, str]:
        """Judge a key once: metric names come back every step."""
        if len(self._keys) >= _REMEMBERED_KEYS:
            self._keys.clear()
        self._keys[key] = judged = (self.text(key), _secrecy_of(key))
        return judged


def _forms_of(name: str, value: str) -> Iterator[str]:
    """Yield the ways in which a secret environment variable's value may appear in text."""
    if len(value) < _SHORTEST_SECRET or not _SECRET_VARIABLE.search(name):
        return
    yield value
    yield quote(value, safe="")
    yield repr(value)[1:-1]
    # A private key is shown line by line in logs.
    yield from (line for line in value.split("\n") if len(line) >= 2 * _SHORTEST_SECRET)


def tokens_in(text: str) -> Iterator[str]:
    """Yield the tokens that a text holds, known by their shape; what only stands in for one (`hf_xxxxxxxx`) is none.

    Example:
        >>> list(tokens_in("token='hf_" + "x" * 34 + "'"))
        []
    """
    for found in _TOKEN.finditer(text):
        token = found[0]
        kinds = sum(any(test(char) for char in token) for test in (str.isupper, str.islower, str.isdigit))
        if len(set(token)) >= 12 and kinds >= 2 and not any(word in token.lower() for word in _STANDS_IN):
            yield token


# --- addresses that are secrets themselves -----------------------------------------------------------------------

_WEB = ("http", "https")
_PARTS = re.compile(r"[/:@?&=#,;]+")
_TELLING = 16
"""Parts of an address from this length on are taken for secrets; shorter ones only with a digit in them."""


def label_of_url(url: str) -> str:
    """Return an address as people may see it: where it leads to, without what lets one in.

    Example:
        >>> label_of_url("https://hooks.example.com/services/T0/B1/xyz")
        'https://hooks.example.com/***'
    """
    scheme, colon, rest = url.partition("://")
    if not colon or not scheme.isascii() or not scheme.replace("+", "").isalnum():
        return MASK
    if scheme.lower() not in _WEB:  # in others the host may be the secret
        return f"{scheme}://{MASK}"
    host, slash, more = rest.rpartition("@")[2].partition("/")
    host, question, _ = host.partition("?")
    return f"{scheme}://{host}" + (f"/{MASK}" if (slash and more) or question else "")


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield what must not be seen of an address: the whole of it, and the parts that look like tokens."""
    if url == label_of_url(url):
        return
    yield url
    scheme, _, rest = url.partition("://")
    try:
        split = urlsplit(url)
        rest = url.partition(split.netloc)[2] if scheme.lower() in _WEB else rest
        login = split.netloc.rpartition("@")[0] if scheme.lower() in _WEB else ""
    except ValueError:  # no address, and so all of it may be anything
        login = ""
    for text in (rest, rest.strip("/"), login):
        for form in (text, unquote(text)):
            yield form
            yield from (part for part in _PARTS.split(form) if len(part) >= _TELLING or any(c.isdigit() for c in part))
    yield from _PARTS.split(unquote(login))


def secrets_of_urls(urls: Iterable[str]) -> list[str]:
    """Return what must not be seen of some addresses."""
    return [secret for url in urls for secret in secrets_of_url(url)]


# --- what people see --------------------------------------------------------------------------------------------

_UNSHOWN = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9b-\x9f\n]*+(?:\x07|\x1b\\|\x9c)"  # titles, links, device strings
    r"|\x1b[ -/]*+[0-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"  # text direction, invisible marks
    r"|[\U000e0000-\U000e007f\ud800-\udfff]"  # invisible tags; halves of pairs, which cannot be printed
)


def strip_control(text: str) -> str:
    r"""Return the text without terminal escapes and control characters; newline and tab stay.

    Example:
        >>> strip_control("\x1b[31mloss\x1b[0m is high\x07")
        'loss is high'
    """
    return _UNSHOWN.sub("", text)
