"""The Hub, or the network on the way to it, did not answer. Never matched on bare words such as api or timeout."""

from __future__ import annotations

from ..actions.retry_later import RetryLater
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

IT_MAY_PASS = (rung(RetryLater(), success=0.95, repeats=5), rung(StopRun()))
GIVE_UP = (rung(StopRun()),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="hub-rate-limited",
        says="The Hub asked for fewer requests.",
        failure=FailureType.API_ERROR,
        fine="hub_rate_limit",
        text=r"\b429 Client Error|\b429 Too Many Requests|Too Many Requests for url",
        weight=0.93,
        remedy=IT_MAY_PASS,
        fixes=("Log in with a token, download once to a local folder, and start fewer ranks at the same moment.",),
        matches=(
            ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
            "https://huggingface.co/api/models/gpt2"),
        ),
        but_not=("step 429 loss 2.31", "requests.exceptions.HTTPError: 404 Client Error: Not Found for url"),
        source="https://github.com/huggingface/datasets/issues/7506",
    ),
    Pattern(
        name="hub-server-error",
        says="The server failed while it handled the request.",
        failure=FailureType.API_ERROR,
        fine="hub_server_error",
        text=r"\b50[0-4] Server Error",
        weight=0.92,
        remedy=IT_MAY_PASS,
        fixes=("Wait; see status.huggingface.co.",),
        matches=(
            ("huggingface_hub.errors.HfHubHTTPError: 504 Server Error: Gateway Time-out for url: "
            "https://huggingface.co/api/models/gpt2"),
        ),
        but_not=("trained 500 steps, server error rate 0",),
        source="https://github.com/huggingface/huggingface_hub/issues/1516",
    ),
    Pattern(
        name="hub-access-denied",
        says="The Hub refused access: the token is missing, wrong, or not allowed to read the repository.",
        failure=FailureType.API_ERROR,
        fine="hub_auth",
        text=(
            r"\b40[13] Client Error|access(?:ing)? (?:to )?(?:a )?gated repo|GatedRepoError|is a gated repository"
            r"|Invalid username or password|Invalid user token"
        ),
        weight=0.93,
        remedy=GIVE_UP,
        fixes=("Ask for access on the model's page, then log in with hf auth login or set HF_TOKEN.",),
        matches=(
            ("huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url "
            "https://huggingface.co/org/model/resolve/main/config.json."),
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/org/m.",
        ),
        but_not=("PermissionError: [Errno 13] Permission denied: '/data/cache'",),
        source="transformers, utils/hub.py",
    ),
    Pattern(
        name="hub-xet-failed",
        says="The Hub's Xet storage service failed.",
        failure=FailureType.API_ERROR,
        fine="hub_xet",
        text=r"CAS service error",
        weight=0.94,
        remedy=IT_MAY_PASS,
        fixes=("Set HF_HUB_DISABLE_XET=1 to download the plain way.",),
        matches=(
            "RuntimeError: Data processing error: CAS service error : ReqwestMiddleware Error: Request failed after 5 retries",
        ),
        but_not=("RuntimeError: Data processing error: bad record",),
        source="https://docs.axolotl.ai/docs/training_stability.html",
    ),
    Pattern(
        name="network-unreachable",
        says="A server could not be reached.",
        failure=FailureType.API_ERROR,
        fine="network",
        text=(
            r"HTTPS?ConnectionPool\(|We couldn't connect to '|Couldn't reach .{1,200} on the Hub"
            r"|Couldn't reach the Hugging Face Hub|Name or service not known|Temporary failure in name resolution"
            r"|socket\.timeout: timed out|outgoing traffic has been disabled|Network is unreachable"
            r"|Remote end closed connection without response"
        ),
        weight=0.9,
        remedy=IT_MAY_PASS,
        fixes=(
            ("Check the network of this machine; a cluster's nodes often have none. Download beforehand and set "
            "HF_HUB_OFFLINE=1."),
        ),
        matches=(
            ("OSError: We couldn't connect to 'https://huggingface.co' to load the files, and couldn't find them in the "
            "cached files."),
            "ConnectionError: Couldn't reach 'imdb' on the Hub (LocalEntryNotFoundError)",
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
            "httpx2.ConnectError: [Errno -2] Name or service not known",
        ),
        but_not=(
            "ValueError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': 'api/network'",
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:34567",
        ),
        source="transformers utils/hub.py, datasets load.py, huggingface_hub",
    ),
    Pattern(
        name="network-error-raised",
        says="A library for network access gave up.",
        failure=FailureType.API_ERROR,
        fine="network",
        exception=(
            "httpx.TransportError", "httpx2.TransportError", "requests.exceptions.ConnectionError",
            "requests.exceptions.Timeout", "urllib3.exceptions.HTTPError", "aiohttp.client_exceptions.ClientError",
            "aiohttp.ClientError", "httpx.ConnectError", "httpx2.ConnectError", "httpx.ReadTimeout", "httpx2.ReadTimeout",
            "huggingface_hub.errors.LocalEntryNotFoundError", "huggingface_hub.errors.OfflineModeIsEnabled",
        ),
        weight=0.8,
        remedy=IT_MAY_PASS,
        fixes=("Check the network of this machine, and whether the server answers elsewhere.",),
        matches=("httpx2.ReadTimeout: The read operation timed out",),
        but_not=("TimeoutError: the barrier was not reached", "ConnectionResetError: [Errno 104] Connection reset by peer"),
        source="httpx, as raised by huggingface_hub",
    ),
)  # fmt: skip
