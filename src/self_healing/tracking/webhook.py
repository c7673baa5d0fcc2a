"""Post an alert to an address of the web, as JSON, with what the standard library has."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from email.message import Message
from http.client import HTTPException
from typing import IO
from urllib.parse import urlsplit

from .message import Message as Alert

TIMEOUT_S = 5.0
"""For connecting, and for each answer on the way."""
PAUSES_S = (1.0, 4.0)
"""Before it is tried again: a server that restarts is back by then."""


class WebhookError(Exception):
    """An address did not take an alert."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses to go elsewhere: a POST would become a GET there, and look like a success."""

    def redirect_request(  # noqa: PLR0917  # urllib's signature
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        """Take the answer for the failure it is."""


_OPENER = urllib.request.build_opener(_NoRedirect)


def post(url: str, alert: Alert, give_up: threading.Event) -> None:
    """Send an alert, again after a pause where that may help; `give_up` ends the pauses.

    Raises:
        WebhookError: it was not taken.

    """
    body = json.dumps(payload(url, alert), allow_nan=False).encode()
    request = urllib.request.Request(  # noqa: S310  # the configuration takes http and https only
        url,
        data=body,
        headers={"Content-Type": "application/json", "User-Agent": "self-healing-training"},
        method="POST",
    )
    for pause_s in (*PAUSES_S, None):
        try:
            with _OPENER.open(request, timeout=TIMEOUT_S):
                return
        except urllib.error.HTTPError as error:
            said, may_pass = f"it answered {error.code}", error.code >= 500 or error.code == 429
            error.close()
        except (OSError, HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            said, may_pass = f"{type(reason).__name__}: {reason}", True
        if not may_pass or pause_s is None or give_up.wait(pause_s):
            raise WebhookError(said)


def payload(url: str, alert: Alert) -> Mapping[str, object]:
    """Return what is posted: our own fields, or what the two services take that have none for them."""
    host = urlsplit(url).hostname or ""
    if host == "hooks.slack.com":
        return {"text": f"*{alert.level}: {alert.title}*\n{alert.text}"}
    if host in ("discord.com", "discordapp.com"):
        return {"content": f"**{alert.level}: {alert.title}**\n{alert.text}"[:2000]}
    return alert.to_json()
