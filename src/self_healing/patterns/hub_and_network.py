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
        text=(
            r"\b429 Client Error|\b429 Too Many Requests|Too Many Requests for url|HTTP Error 429|\(429 Too Many Requests\)"
            r"|(?:status|status_code|status code|code)\D{1,4}429\b|We had to rate limit|hit the (?:quota|rate limit)|[Rr]ate limit(?:ed)? (?:exceeded|reached|by)"
            r"|API rate limit|RateLimitError|\bSlowDown\b|ThrottlingException|reached the rate limit|have been rate limited"
        ),
        weight=0.93,
        remedy=IT_MAY_PASS,
        fixes=("Log in with a token, download once to a local folder, and start fewer ranks at the same moment.",),
        matches=(
            ("huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: "
            "https://huggingface.co/api/models/gpt2"),
        ),
        but_not=("INFO: rate limiter set to 10 per second", "step 429 loss 2.31", "requests.exceptions.HTTPError: 404 Client Error: Not Found for url"),
        source="https://github.com/huggingface/datasets/issues/7506",
    ),
    Pattern(
        name="hub-server-error",
        says="The server failed while it handled the request.",
        failure=FailureType.API_ERROR,
        fine="hub_server_error",
        text=(
            r"\b5(?:0\d|2\d) Server Error|HTTP Error 5\d\d\b|HTTP status server error \(5\d\d|\b50[0-4] (?:Internal Server Error|Bad Gateway|Service Unavailable|Gateway Time-?out)"
            r"|Internal Error - We're working hard to fix this|(?:status|status_code|status code)\D{1,4}50[0-4]\b"
        ),
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
            r"\b40[13] Client Error|access(?:ing)? (?:to )?(?:a )?gated repo|GatedRepoError|is a gated (?:repo|model|dataset)|repo is gated"
            r"|Invalid username or password|Invalid user token|RepositoryNotFoundError|Repository Not Found for url|Access to (?:model|dataset) \S+ is restricted"
            r"|is gated\. You must|awaiting a review from the repo authors|Invalid (?:access )?token|Token is required|LocalTokenNotFound|must use a write token"
            r"|You don't have the rights to|Invalid credentials in Authorization header|You need to (?:be authenticated|log in|login)|HTTP Error 40[13]\b"
            r"|Access to this resource is disabled|not in the authorized list|Authorization header is (?:correct|invalid)"
            r"|does not have (?:the )?(?:correct )?permissions? to"
        ),
        weight=0.93,
        remedy=GIVE_UP,
        fixes=("Ask for access on the model's page, then log in with hf auth login or set HF_TOKEN.",),
        matches=(
            ("huggingface_hub.errors.GatedRepoError: 401 Client Error. Cannot access gated repo for url "
            "https://huggingface.co/org/model/resolve/main/config.json."),
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at https://huggingface.co/org/m.",
        ),
        but_not=(
            "PermissionError: [Errno 13] Permission denied: '/data/cache'",
            "requests.exceptions.HTTPError: 404 Client Error: Not Found for url",
        ),
        source="transformers, utils/hub.py",
    ),
    Pattern(
        name="hub-xet-failed",
        says="The Hub's Xet storage service failed.",
        failure=FailureType.API_ERROR,
        fine="hub_xet",
        text=(
            r"CAS (?:service|Client) error|CasClientError|CasObjectError|\bxet_(?:get|upload\w*|download\w*)\b|hf_xet\.\w+Error|hf_xet\w* (?:error|failed)|xet-core|XetError|\bxorb\b"
            r"|Data processing error: (?:MerkleDB|File reconstruction|Shard|Xet|I/O)|cas-server\.xethub|transfer\.xethub|XetAuthorization"
        ),
        weight=0.94,
        remedy=IT_MAY_PASS,
        fixes=("Set HF_HUB_DISABLE_XET=1 to download the plain way.",),
        matches=(
            "RuntimeError: Data processing error: CAS service error : ReqwestMiddleware Error: Request failed after 5 retries",
            "RuntimeError: Data processing error: CAS Client Error: Authentication error: token refresh failed",
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
            r"|Remote end closed connection without response|Max retries exceeded with url|Failed to establish a new connection"
            r"|ProxyError|[Cc]annot connect to proxy|Tunnel connection failed|CERTIFICATE_VERIFY_FAILED|SSLCertVerificationError|\bSSLError\("
            r"|EOF occurred in violation of protocol|SSL: \w+\]|IncompleteRead\(|ChunkedEncodingError|RemoteDisconnected|RemoteProtocolError"
            r"|getaddrinfo failed|[Cc]ould not resolve host|nodename nor servname|urlopen error|trying to locate the files? on the Hub"
            r"|cannot find the (?:requested|appropriate) (?:files|snapshot)|LocalEntryNotFoundError|peer closed connection without sending"
            r"|(?:urllib3|requests|httpx2?|httpcore2?|aiohttp)\.[\w.]{0,60}(?:Timeout|ConnectError|ConnectionError|ReadError|TransportError|ClientError|TimeoutError|ProtocolError)\b"
            r"|Cannot connect to host|Connection aborted\.|Connect(?:ion)? to \S+ timed out|The handshake operation timed out|\bTimeoutError: The \w+ operation timed out"
            r"|Offline mode is enabled|Failed to connect to \S+ port \d+|Connection broken: |\bRead timed out\b|\bReadTimeoutError\b"
            r"|WinError 100(?:5[34]|6[0-5])\b|exceptions\.FSTimeoutError\b|Could not connect to the endpoint URL|ConnectionError: (?:Couldn't|HTTPS?|\('|\[Errno)|Server disconnected"
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
            "urllib.error.URLError: <urlopen error [Errno 111] Connection refused>",
            (
                "huggingface_hub.errors.LocalEntryNotFoundError: An error happened while trying to locate the file on the Hub and we "
                "cannot find the requested files in the local cache."
            ),
            "OSError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /gpt2 (ProxyError)",
            "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate",
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
            "httpx2.ConnectError: [Errno -2] Name or service not known",
            "[rank0]: fsspec.exceptions.FSTimeoutError",
            'botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: "https://s3.amazonaws.com/b"',
            "TimeoutError: [WinError 10060] A connection attempt failed because the connected party did not properly respond",
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
    Pattern(
        name="connection-lost-printed",
        says="A connection was lost or could not be made.",
        failure=FailureType.API_ERROR,
        fine="network",
        text=r"(?:ConnectionReset|ConnectionRefused|ConnectionAborted|BrokenPipe|FSTimeout|Timeout)Error\b:? ?(?:\[Errno|timed out|\s{0,4}$)|socket\.gaierror",
        weight=0.54,
        remedy=IT_MAY_PASS,
        fixes=("Check the network of this machine; a data worker or a tracker that died looks the same: read what is above.",),
        matches=("Traceback\nConnectionResetError: [Errno 104] Connection reset by peer", "ERROR TimeoutError: [Errno 110] Connection timed out"),
        but_not=("TimeoutError: the barrier was not reached",),
        source="CPython, built-in exceptions",
    ),
)  # fmt: skip
