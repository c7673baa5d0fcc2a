"""What a script pushes to the Hub, and whether it brings a token for that itself."""

from __future__ import annotations

from ..finding import Place
from ..scripts.syntax import is_conditional
from ..subject import Call, Script, Subject

_LOGINS = frozenset({"login", "notebook_login", "interpreter_login"})
_OWN_TOKENS = ("hub_token", "push_to_hub_token")
_DEEPEST = 4


def first_push(subject: Subject) -> Place | None:
    """Return where a script surely pushes to the Hub; a push under a condition, which may not be, is none."""
    for script, call in subject.calls(lambda call: call.last == "push_to_hub"):
        if not call.has_unknown_keywords and is_sure(script, call):
            return Place(script.named, call.line)
    return None


def is_sure(script: Script, call: Call, depth: int = 0) -> bool:
    """Say whether a call is made in every run: neither it nor a call of its function depends on anything."""
    if call.is_guarded or is_conditional(script, call) or depth > _DEEPEST:
        return False
    return not call.function or any(is_sure(script, other, depth + 1) for other in script.calls_of(call.function))


def logs_in(subject: Subject) -> bool:
    """Say whether it gives the Hub a token of its own."""
    calls = subject.calls(lambda call: call.last in _LOGINS or "token" in call.keywords)
    return any(True for _ in calls) or subject.setting(*_OWN_TOKENS) is not None


def may_log_in(subject: Subject) -> bool:
    """Say whether it gives a token, or reads or sets the variable for it in a way of its own."""
    return logs_in(subject) or any("HF_TOKEN" in script.text for script in subject.scripts)
