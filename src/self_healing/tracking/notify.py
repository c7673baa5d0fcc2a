"""Send an alert with apprise, which knows the addresses of a hundred services; it is an extra: `notify`."""

from __future__ import annotations

from typing import Any

from .message import Message

MISSING = "it needs apprise: pip install self-healing-training[notify]"


class NotifyError(Exception):
    """A service did not take an alert, or there is nothing here that could send it."""


def notify(url: str, alert: Message) -> None:
    """Send an alert to an apprise URL; apprise has time limits of its own.

    Raises:
        NotifyError: it was not taken, the address is none that apprise knows, or apprise is not installed.

    """
    try:
        import apprise  # noqa: PLC0415  # an extra, and slow to import
    except ImportError as error:
        raise NotifyError(MISSING) from error
    services: Any = apprise.Apprise()
    if not services.add(url):
        raise NotifyError("apprise does not know an address of this kind")
    kinds = {"INFO": apprise.NotifyType.INFO, "WARN": apprise.NotifyType.WARNING, "ERROR": apprise.NotifyType.FAILURE}
    if not services.notify(title=f"{alert.level}: {alert.title}", body=alert.text, notify_type=kinds[alert.level]):
        raise NotifyError("the service did not take it")
