"""Every state a repository or the Hub can be in is named correctly, with what to do about it; the client is the real one."""

from __future__ import annotations

import threading
import time

import pytest

from self_healing.preflight.hub import Hub, State
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.tools import Tools

from ..unit.loopback_servers import hanging, refusing
from .hub_server import NEW, OLD, hub_server

SHORT_S = 0.3


@pytest.fixture(scope="module")
def hub():
    with hub_server() as server:
        yield server


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def checked(folder, url, text, *select, name="config.yaml", limit_s=5.0, offline=False, **environ):
    """Check a file, asking the Hub at an address."""
    options = CheckOptions(select=select, offline=offline)
    (folder / name).write_text(text)
    tools = Tools(options=options, environ={"HF_ENDPOINT": url, **environ}, cwd=folder, hub_limit_s=limit_s)
    return run_checks(read_subject([name], [], options, folder), tools)


def model(folder, url, name, **rest):
    text = f'from transformers import AutoModel\nAutoModel.from_pretrained("{name}")\n'
    return checked(folder, url, text, "missing-model", name="train.py", **rest)


def only(report):
    """Return the one finding of a report that has no other, and in which everything could be looked at."""
    assert report.not_run == []
    (found,) = report.findings
    return found


def unanswered(report):
    """Return why nothing is said, where nothing is."""
    assert report.findings == []
    (each,) = report.not_run
    assert report.exit_code(strict=True) == 1
    return each.because


# -- repositories ------------------------------------------------------------------------------------


def test_what_is_there_is_no_finding(tmp_path, hub):
    report = model(tmp_path, hub.url, "acme/tiny-0.5B")
    assert (report.findings, report.not_run) == ([], [])


def test_a_slip_in_a_name_gets_the_name_that_was_meant(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/tinny-0.5B", HF_TOKEN="hf_reader"))
    assert (str(found.severity), str(found.where)) == ("error", "train.py:2")
    assert "there is no such model" in found.message
    assert "did you mean acme/tiny-0.5B?" in found.message
    assert found.fix.startswith('Write "acme/tiny-0.5B"')


def test_a_slip_in_the_author_gets_the_name_that_was_meant(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acmee/tiny-0.5B"))
    assert found.fix.startswith('Write "acme/tiny-0.5B"')


def test_a_slip_in_a_name_without_an_author_gets_the_name_that_was_meant(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "gpt-2"))
    assert found.fix.startswith('Write "openai-community/gpt2"')


def test_where_no_name_is_near_what_the_author_has_is_listed(tmp_path, hub):
    text = 'from datasets import load_dataset\nload_dataset("trl-lib/argilla-dpo-mix-7k")\n'
    found = only(checked(tmp_path, hub.url, text, "missing-dataset", name="train.py"))
    assert "did you mean" not in found.message
    assert "trl-lib/ultrafeedback_binarized" in found.fix
    assert found.fix.count("trl-lib/") == 5
    assert "and 1 more" in found.fix


def test_an_author_who_has_nothing_gets_an_address_to_look_at(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "nobody-at-all/xyzzy"))
    assert f"{hub.url}/models?search=xyzzy" in found.fix


def test_a_data_set_in_the_place_of_a_model_is_called_one(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/unlisted"))
    assert "is the name of a data set, and there is no model of that name" in found.message


def test_a_renamed_repository_gets_its_new_name(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/old-name"))
    assert str(found.severity) == "warning"
    assert "is now called acme/new-name" in found.message
    assert found.fix == 'Write "acme/new-name"'


def test_a_short_name_that_the_hub_keeps_is_only_a_note(tmp_path, hub):
    report = model(tmp_path, hub.url, "gpt2")
    assert str(only(report).severity) == "info"
    assert report.exit_code(strict=False) == 0


def test_a_gated_repository_without_a_token_says_both(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/gated"))
    assert "is gated, and no token is set" in found.message
    assert f"Open {hub.url}/acme/gated, accept the terms, then run `hf auth login`" in found.fix


def test_a_gated_repository_with_a_token_wants_its_terms_accepted(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/gated", HF_TOKEN="hf_reader"))
    assert "is gated, and the account of this token has no access to it" in found.message
    assert "accept the terms" in found.fix


def test_a_gated_repository_to_which_access_was_given_is_no_finding(tmp_path, hub):
    report = model(tmp_path, hub.url, "acme/gated", HF_TOKEN="hf_owner")
    assert (report.findings, report.not_run) == ([], [])


def test_a_private_repository_without_a_token_may_be_missing_or_private(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/private"))
    assert "or it is private and no token is set" in found.message
    assert "if it is private, run `hf auth login`" in found.fix


def test_a_private_repository_of_others_may_be_missing_or_not_for_this_token(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/private", HF_TOKEN="hf_reader"))
    assert "or it is private and this token may not see it" in found.message


def test_a_private_repository_of_ones_own_is_no_finding(tmp_path, hub):
    report = model(tmp_path, hub.url, "acme/private", HF_TOKEN="hf_owner")
    assert (report.findings, report.not_run) == ([], [])


def test_a_token_that_is_refused_is_told_once_and_the_rest_is_still_looked_at(tmp_path, hub):
    text = "model_name_or_path: acme/tiny-0.5B\ndataset_name: acme/chats\n"
    checks = ("missing-model", "missing-dataset", "refused-hub-token")
    found = only(checked(tmp_path, hub.url, text, *checks, HF_TOKEN="hf_revoked"))
    assert (found.check, str(found.where)) == ("refused-hub-token", "environment: HF_TOKEN")
    assert "refuses the token in HF_TOKEN (401)" in found.message
    assert "set HF_TOKEN to it" in found.fix


def test_a_saved_token_that_is_refused_is_told_with_its_file(tmp_path, hub):
    (tmp_path / "token").write_text("hf_revoked\n")
    text = "model_name_or_path: acme/tiny-0.5B\n"
    found = only(checked(tmp_path, hub.url, text, "refused-hub-token", HF_HOME=str(tmp_path)))
    assert "hf auth login" in found.fix


def test_a_token_with_odd_characters_is_a_refused_one(tmp_path, hub):
    text = "model_name_or_path: acme/tiny-0.5B\n"
    assert (
        only(checked(tmp_path, hub.url, text, "refused-hub-token", HF_TOKEN="hf_\u2026 cut")).check
        == "refused-hub-token"
    )
    assert model(tmp_path, hub.url, "acme/tiny-0.5B", HF_TOKEN="hf_\u2026 cut").findings == []


def test_a_token_that_may_not_read_something_is_told(tmp_path, hub):
    found = only(model(tmp_path, hub.url, "acme/answers-forbidden", HF_TOKEN="hf_reader"))
    assert "the token may not read this model (403)" in found.message


def test_a_disabled_repository_is_told(tmp_path, hub):
    assert "has been disabled" in only(model(tmp_path, hub.url, "acme/disabled")).message


def test_a_revision_that_is_not_there_gets_the_branches_and_tags(tmp_path, hub):
    text = 'from transformers import AutoModel\nAutoModel.from_pretrained("acme/tiny-0.5B", revision="v9")\n'
    found = only(checked(tmp_path, hub.url, text, "missing-revision", "missing-model", name="train.py"))
    assert "has no revision 'v9'" in found.message
    assert "the branches main, fp16 and the tags v1.0" in found.fix


def test_the_branch_that_the_hub_converts_data_to_is_a_revision(tmp_path, hub):
    text = 'from datasets import load_dataset\nload_dataset("acme/chats", revision="refs/convert/parquet")\n'
    report = checked(tmp_path, hub.url, text, "missing-revision", "missing-dataset", name="train.py")
    assert (report.findings, report.not_run) == ([], [])


def test_a_repository_that_changed_since_it_was_pinned_is_a_note(tmp_path, hub):
    text = f'from transformers import AutoModel\nAutoModel.from_pretrained("acme/tiny-0.5B", revision="{OLD}")\n'
    found = only(checked(tmp_path, hub.url, text, "missing-revision", name="train.py"))
    assert str(found.severity) == "info"
    assert "has changed since the pinned commit aaaaaaaaaaaa (last on 2026-01-02)" in found.message
    assert f'revision="{NEW}"' in found.fix


# -- no answer: neither a pass nor a finding ---------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("answers-429", "too many questions of yours (429); try again in 300 s"),
        ("answers-503", "an error of its own (503); try again later"),
        ("answers-slow", "gave no answer within 0.3 s"),
        ("answers-drips", " s"),  # huggingface_hub < 1 reads on until the question itself is given up
        ("answers-html", "none of a Hub; look at HF_ENDPOINT"),
        ("answers-broken", "none of a Hub"),
        ("answers-list", "none of a Hub"),
        ("answers-huge", "more than 16 MiB"),
        ("answers-endless", "more than 16 MiB"),
        ("answers-circle", "around in a circle"),
        ("answers-closes", "no answer that can be read"),
    ],
)
def test_a_hub_in_trouble_is_told_by_its_trouble(tmp_path, hub, name, says):
    limit_s = SHORT_S if name in ("answers-slow", "answers-drips") else 5.0
    begun = time.monotonic()
    because = unanswered(model(tmp_path, hub.url, f"acme/{name}", limit_s=limit_s))
    assert because.startswith(f"acme/{name}: ")
    assert says in because
    assert time.monotonic() - begun < 2


def test_a_hub_that_takes_the_question_and_never_answers_is_left_after_the_limit(tmp_path):
    with hanging() as url:
        begun = time.monotonic()
        assert "no answer within 0.3 s" in unanswered(model(tmp_path, url, "acme/tiny-0.5B", limit_s=SHORT_S))
        assert time.monotonic() - begun < 1


def test_a_closed_port_is_no_connection(tmp_path):
    with refusing() as url:
        assert "there is no connection to 127.0.0.1" in unanswered(model(tmp_path, url, "acme/tiny-0.5B"))


def test_a_name_that_leads_nowhere_is_no_connection(tmp_path):
    assert "there is no connection to" in unanswered(model(tmp_path, "http://hub.invalid", "acme/tiny-0.5B"))


def test_an_endpoint_that_is_no_address_is_told(tmp_path):
    assert "HF_ENDPOINT is no address" in unanswered(model(tmp_path, "hub.local", "acme/tiny-0.5B"))


@pytest.mark.parametrize("switch", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_mode_asks_nothing(tmp_path, hub, switch):
    before = len(hub.asked)
    because = unanswered(model(tmp_path, hub.url, "acme/no-such", **{switch: "1"}))
    assert "HF_HUB_OFFLINE is set" in because
    assert len(hub.asked) == before


def test_the_flag_offline_asks_nothing(tmp_path, hub):
    before = len(hub.asked)
    assert "--offline is given" in unanswered(model(tmp_path, hub.url, "acme/no-such", offline=True))
    assert len(hub.asked) == before


def test_without_the_client_it_says_how_to_install_it(tmp_path, hub, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub.errors", None)
    assert "pip install huggingface_hub" in unanswered(model(tmp_path, hub.url, "acme/tiny-0.5B"))


def test_what_the_hub_does_answer_counts_beside_what_it_does_not(tmp_path, hub):
    text = "model_name_or_path: acme/answers-503\nref_model: acme/tinny-0.5B\n"
    report = checked(tmp_path, hub.url, text, "missing-model")
    assert ["did you mean acme/tiny-0.5B?" in found.message for found in report.findings] == [True]
    assert ["acme/answers-503" in each.because for each in report.not_run] == [True]


# -- care --------------------------------------------------------------------------------------------


def test_a_token_is_not_sent_to_another_host(tmp_path, hub):
    with hub_server() as other:
        hub.elsewhere = other.url
        because = unanswered(model(tmp_path, hub.url, "acme/answers-elsewhere", HF_TOKEN="hf_reader"))
        assert "to another host" in because
        assert [authorization for _, _, authorization in other.asked] == [None]
    assert ("GET", "/api/models/acme/answers-elsewhere", "Bearer hf_reader") in hub.asked


def test_a_token_is_never_in_what_is_printed(tmp_path, hub):
    for name in ("answers-503", "answers-html", "private", "gated", "answers-forbidden"):
        report = model(tmp_path, hub.url, f"acme/{name}", HF_TOKEN="hf_reader")
        assert "hf_reader" not in str(report.to_json())


def test_odd_fields_of_an_answer_are_passed_over(hub):
    answer = Hub({"HF_ENDPOINT": hub.url}).repository("model", "acme/answers-odd").answer()
    assert (answer.state, answer.repository.files, answer.repository.card) == (State.FOUND, (), {})


def test_all_names_are_asked_at_once(tmp_path, hub):
    hub.together = threading.Barrier(10)  # of which none is answered before all are asked
    lines = ["from datasets import load_dataset", "from transformers import AutoModel"]
    lines += [f'AutoModel.from_pretrained("acme/answers-together-{place}")' for place in range(9)]
    lines += ['load_dataset("acme/answers-together")']
    checks = ("missing-model", "missing-dataset", "missing-revision", "missing-dataset-part")
    report = checked(tmp_path, hub.url, "\n".join(lines) + "\n", *checks, name="train.py", limit_s=30)
    assert (report.findings, report.not_run) == ([], [])


def test_each_question_is_asked_once_in_a_run(tmp_path, hub):
    before = len(hub.asked)
    text = (
        "from datasets import load_dataset\nfrom transformers import AutoModel, AutoTokenizer\n"
        'AutoModel.from_pretrained("acme/tiny-0.5B")\nAutoTokenizer.from_pretrained("acme/tiny-0.5B")\n'
        'load_dataset("acme/chats", split="train")\n'
    )
    options = (
        "missing-model",
        "missing-dataset",
        "missing-dataset-part",
        "missing-dataset-columns",
        "missing-revision",
    )
    checked(tmp_path, hub.url, text, *options, name="train.py")
    asked = sorted(path for _, path, _ in hub.asked[before:])
    assert asked == ["/api/datasets/acme/chats", "/api/models/acme/tiny-0.5B"]


def test_a_folder_of_the_same_name_wins(tmp_path, hub):
    (tmp_path / "acme" / "no-such").mkdir(parents=True)
    before = len(hub.asked)
    report = model(tmp_path, hub.url, "acme/no-such")
    assert (report.findings, report.not_run, len(hub.asked)) == ([], [], before)


@pytest.mark.parametrize("name", ["./mine", "/models/mine", "outputs/sft", "out/checkpoint-10", "a/b/c", "~/mine"])
def test_a_path_is_not_asked_for(tmp_path, hub, name):
    before = len(hub.asked)
    assert model(tmp_path, hub.url, name).findings == []
    assert len(hub.asked) == before


def test_what_an_earlier_step_makes_is_not_asked_for(tmp_path, hub):
    text = (
        "from transformers import AutoModel\nfrom trl import SFTConfig\nargs = SFTConfig(output_dir='sft-model')\n"
        "AutoModel.from_pretrained('sft-model')\nmodel.push_to_hub('ann/made-here')\nAutoModel.from_pretrained('ann/made-here')\n"
    )
    before = len(hub.asked)
    assert checked(tmp_path, hub.url, text, "missing-model", name="train.py").findings == []
    assert len(hub.asked) == before
