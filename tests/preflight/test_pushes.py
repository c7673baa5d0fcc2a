"""What is pushed to the Hub: by whom, to whom, and whether it may be."""

from __future__ import annotations

import pytest

from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

PUSH = "from trl import SFTConfig\nSFTConfig(push_to_hub=True, hub_model_id={!r})\n"


@pytest.mark.parametrize(
    ("token", "name", "says"),
    [
        (None, "ann/mine", "no token is set | Leave push_to_hub out, or run `hf auth login` (or set HF_TOKEN)"),
        ("hf_reader", "ann/mine", "may only read, so the result cannot be pushed"),
        ("hf_writer", "amce/ours", "does not belong to amce; did you mean acme?"),
        ("hf_writer", "library/ours", "ann may only read in library"),
        ("hf_fine", "acme/ours", "has not been given the right to write to acme"),
    ],
)
def test_what_cannot_be_pushed_is_told_before(check, token, name, says):
    (found,) = check("unwritable-repository", PUSH.format(name), **({"HF_TOKEN": token} if token else {}))
    assert says in found


@pytest.mark.parametrize(
    ("token", "name"),
    [("hf_writer", "ann/mine"), ("hf_writer", "ACME/ours"), ("hf_fine", "mine"), ("hf_owner", "acme/x")],
)
def test_what_can_be_pushed_is_no_finding(check, token, name):
    assert check("unwritable-repository", PUSH.format(name), HF_TOKEN=token) == []


def test_without_a_command_the_token_may_be_on_another_machine(check, tmp_path):
    (found,) = check("unwritable-repository", PUSH.format("ann/mine"))
    assert found.startswith("warning: the result is to be pushed")
    (found,) = check("unwritable-repository", argv=["python", "train.py"])
    assert found.startswith("error: the result is to be pushed")


@pytest.mark.parametrize(
    "push", ["trainer.push_to_hub()", "model.push_to_hub(repo)", "def main():\n    t.push_to_hub()\nmain()"]
)
@pytest.mark.parametrize("offline", [False, True])
def test_a_push_to_a_name_that_is_not_known_gets_one_finding_where_nobody_is_logged_in(tmp_path, hub, push, offline):
    (tmp_path / "train.py").write_text(f"{push}\n")
    options = CheckOptions(select=("unwritable-repository", "hub-token-missing"), offline=offline)

    def found(**environ):
        tools = Tools(options=options, environ={"HF_ENDPOINT": hub.url, **environ}, cwd=tmp_path)
        return run_checks(read_subject([], ["python", "train.py"], options, tmp_path), tools).findings

    (only,) = found()
    assert (only.check, str(only.severity)) == ("hub-token-missing" if offline else "unwritable-repository", "error")
    assert found(HF_TOKEN="hf_fine") == []


@pytest.mark.parametrize("text", [
    "if training_args.push_to_hub:\n    trainer.push_to_hub()\n",
    "def push():\n    t.push_to_hub()\nif args.push:\n    push()\n",
    "try:\n    t.push_to_hub()\nexcept OSError as error:\n    print(error)\n",
    "t.push_to_hub(**options)\n",
    "import os\nkey = os.environ['HF_TOKEN']\nt.push_to_hub(repo)\n",
])  # fmt: skip
def test_a_push_that_may_not_be_or_brings_its_token_is_no_finding(check, text):
    assert check("unwritable-repository", text) == []
    assert check("hub-token-missing", text, offline=True) == []


def test_a_script_that_logs_in_itself_is_passed_over(check):
    text = "from huggingface_hub import login\nlogin()\n" + PUSH.format("ann/mine")
    assert check("unwritable-repository", text) == []


def test_a_refused_token_is_told_where_something_is_only_pushed(check):
    (found,) = check("refused-hub-token", PUSH.format("ann/mine"), HF_TOKEN="hf_revoked")
    assert "refuses the token" in found
