"""The experiment tracker failed. The training itself is sound, and need not stop for it."""

from __future__ import annotations

from ..actions.retry_later import RetryLater
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

IT_MAY_PASS = (rung(RetryLater(), success=0.8, repeats=3), rung(StopRun()))
GIVE_UP = (rung(StopRun()),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="wandb-failed",
        says="Weights & Biases could not be reached or refused the run.",
        failure=FailureType.API_ERROR,
        fine="tracker_error",
        text=(
            r"wandb\.(?:sdk\.)?(?:errors|lib|service|mailbox|apis)[\w.]{1,60}(?:Error|Timeout|Exception)\b|\bwandb: ERROR "
            r"|wandb: Network error|Run initialization has timed out after|Error communicating with wandb process"
            r"|Couldn't communicate with backend after|ManagerConnectionRefusedError|wandb\.init\(\) failed|Error while calling W&B API"
            r"|problem (?:at|connecting).{0,80}wandb|(?:host='|://)api\.wandb\.ai|wandb-core exited|wandb service"
            r"|(?:BrokenPipeError|ConnectionResetError|ConnectionRefusedError)[\s\S]{0,300}wandb/(?:sdk|apis)/|wandb/(?:sdk|apis)/[\s\S]{0,300}(?:BrokenPipe|ConnectionReset|ConnectionRefused)Error"
        ),
        weight=0.945,
        remedy=IT_MAY_PASS,
        fixes=(
            "Set WANDB_MODE=offline and upload later with wandb sync, or report_to: none, so that training does not depend on it.",
            "Raise the time limit: wandb.init(settings=wandb.Settings(init_timeout=300)); see status.wandb.com.",
            "Check entity and project, and log in again (wandb login --relogin), if it says permission or not found.",
        ),
        matches=(
            "wandb.errors.errors.CommError: Run initialization has timed out after 90.0 sec.",
            "wandb: ERROR Error while calling W&B API: permission denied (<Response [403]>)",
            "wandb.errors.UsageError: Error communicating with wandb process",
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='api.wandb.ai', port=443): Read timed out. (read timeout=20)",
        ),
        but_not=("wandb: Currently logged in as: someone. Use `wandb login --relogin` to force relogin",),
        source="wandb, wandb/errors/errors.py and sdk/wandb_init.py",
    ),
    Pattern(
        name="wandb-not-logged-in",
        says="Weights & Biases has no key, and nobody is there to type one.",
        failure=FailureType.API_ERROR,
        fine="tracker_error",
        text=(
            r"api_key not configured \(no-tty\)|No API key configured\. Use `wandb login`|API key must be (?:\d+|40) characters"
            r"|wandb: ERROR API key|invalid or missing api_key"
        ),
        weight=0.95,
        remedy=GIVE_UP,
        fixes=("Set WANDB_API_KEY, or WANDB_MODE=offline, or report_to: none.",),
        matches=(
            "wandb.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
            "ValueError: API key must be 40 characters long, yours was 39",
        ),
        but_not=("openai.AuthenticationError: Incorrect API key provided",),
        source="wandb, sdk/lib/apikey.py",
    ),
    Pattern(
        name="another-tracker-failed",
        says="The experiment tracker failed.",
        failure=FailureType.API_ERROR,
        fine="tracker_error",
        text=(
            r"mlflow\.exceptions\.\w+|mlflow\.utils\.rest_utils|API request to .{1,200} failed with exception"
            r"|Changing param values is not allowed|COMET ERROR|comet_ml\.exceptions|neptune\.(?:common\.|new\.)?exceptions\.\w+"
            r"|clearml\.[\w.]{0,60}(?:Error|Exception)|trackio\.[\w.]{0,60}(?:Error|Exception)|swanlab\.[\w.]{0,60}(?:Error|Exception)"
            r"|(?:host='|://)\S{0,60}(?:comet\.com|neptune\.ai|swanlab\.cn|clear\.ml)|aim\.[\w.]{1,60}Error"
        ),
        weight=0.945,
        remedy=IT_MAY_PASS,
        fixes=(
            "Train without it (report_to: none) or with its offline mode, and upload afterwards.",
            "MLflow: a resumed run may not log a parameter with another value; start a new run, or raise its length limits.",
        ),
        matches=(
            "mlflow.exceptions.MlflowException: API request to http://127.0.0.1:5000/api/2.0/mlflow/runs/create failed with exception",
            "ERROR neptune.exceptions.NeptuneInvalidApiTokenException: Provided API token is invalid",
            "COMET ERROR: The given API key is invalid, please check it against the dashboard.",
        ),
        but_not=("mlflow: logged 12 params",),
        source="mlflow/exceptions.py, neptune and comet_ml documentation",
    ),
    Pattern(
        name="tracker-saw-the-run-fail",
        says="The tracker saw the run end with an error; it does not know which.",
        failure=FailureType.CRASH,
        fine="unknown_child_failure",
        text=r"\bwandb: [^\n]{0,60}\(failed \d{1,3}\)|(?:Run|run) \S{1,80} (?:status|state):? (?:crashed|failed)\b",
        weight=0.5,
        is_echo=True,
        remedy=GIVE_UP,
        fixes=(
            "The cause is not in this text: read the standard error of the run, which ends above the tracker's goodbye.",
        ),
        matches=("wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.",),
        but_not=("wandb: Waiting for W&B process to finish... (success).",),
        source="wandb, sdk/wandb_run.py",
    ),
)
