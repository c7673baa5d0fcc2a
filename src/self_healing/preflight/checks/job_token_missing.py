"""The check `job-token-missing`: a job without the token that its script needs."""

from __future__ import annotations

from collections.abc import Iterator

from ..check import Check, Example
from ..finding import Finding
from ..subject import Job, Subject
from ..surroundings.job_needs import has_hub_token, hub_needs, written_for
from ..tools import Tools

_SPEC = "flavor: a10g-large\ntimeout: 4h\n{more}script: |\n  from trl import SFTConfig\n  args = SFTConfig({args})\n"


class JobTokenMissing(Check):
    """A job that writes to the Hub, or reads what is gated, is given a token.

    A job runs on another machine and knows nothing of your login. Without `HF_TOKEN` among its secrets a push at the end of
    the training ends with `401 Client Error: Unauthorized`, and the model is lost with the machine's disk. A run that
    reports to Weights & Biases ends at its start with `api_key not configured (no-tty)`.
    """

    passes = (
        Example(_SPEC.format(more="secrets: [HF_TOKEN]\n", args="push_to_hub=True"), "job.yaml"),
        Example(_SPEC.format(more='secrets: {HF_TOKEN: "$HF_TOKEN"}\n', args="push_to_hub=True"), "job.yaml"),
        Example(_SPEC.format(more="", args="push_to_hub=False"), "job.yaml"),
        Example(_SPEC.format(more="secrets_file: .env\n", args="push_to_hub=True"), "job.yaml"),
        Example("from trl import SFTConfig\nargs = SFTConfig(push_to_hub=True)\n"),
    )
    fails = (
        Example(_SPEC.format(more="", args="push_to_hub=True"), "job.yaml"),
        Example(_SPEC.format(more="secrets: [WANDB_API_KEY]\n", args="push_to_hub=True"), "job.yaml"),
        Example(_SPEC.format(more="", args='report_to="trackio"'), "job.yaml"),
        Example(_SPEC.format(more="", args='report_to="wandb"'), "job.yaml"),
        Example(
            "flavor: t4-small\ntimeout: 1h\nscript: |\n  from transformers import AutoModelForCausalLM\n"
            '  model = AutoModelForCausalLM.from_pretrained("meta-llama/Llama-3.2-1B")\n',
            "job.yaml",
        ),
    )

    def run(self, subject: Subject, tools: Tools) -> Iterator[Finding]:
        """Compare what the script does with what the job brings."""
        job = subject.job
        if job is None:
            return
        if not has_hub_token(job):
            for need in list(hub_needs(subject))[:1]:  # one token serves them all
                tell = self.error if need.is_certain else self.warning
                yield tell(
                    need.place, f"{need.what}, and the job has no HF_TOKEN among its secrets", _fix(job, "HF_TOKEN")
                )
        yield from self._wandb(subject, job)

    def _wandb(self, subject: Subject, job: Job) -> Iterator[Finding]:
        setting = subject.setting("report_to")
        named = setting.value if setting is not None else None
        is_asked = named == "wandb" or (isinstance(named, list | tuple) and "wandb" in named)
        is_said = any(job.has(name) for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DISABLED"))
        is_own = any(word in script.text for script in subject.scripts for word in ("wandb.login", "WANDB_"))
        if setting is not None and is_asked and not is_said and not is_own:
            message = 'report_to="wandb" needs a key, and the job has no WANDB_API_KEY among its secrets'
            yield self.error(setting.place, message, _fix(job, "WANDB_API_KEY"))


def _fix(job: Job, name: str) -> str:
    if job.place.source == "job":
        origin = "your login (hf auth login)" if name == "HF_TOKEN" else "your environment"
        return f"Add --secrets {name} to the command, without a value: it is taken from {origin}, and is shown nowhere"
    return f"Add it to the job, without its value: {written_for(job, 'secrets', f'${name}', name)}"
