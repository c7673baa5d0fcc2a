"""What a stock resume does not bring back: counts in memory, what workers draw, the entry of the step that was saved."""

from __future__ import annotations

import json

import pytest

from self_healing.core.ledger import read_ledger
from self_healing.readers import open_recording
from self_healing.replay import replay

from .killed_training import ON_DISK, SAVING, assert_same, gone_on, killed, notes

pytestmark = [pytest.mark.torch, pytest.mark.timeout(120)]


@pytest.fixture(autouse=True)
def nothing_is_left(own_shared_memory):
    yield
    assert list(own_shared_memory.iterdir()) == []


# -- what is counted in memory ---------------------------------------------------------------------------

FROM_DISK = [
    "sft",
    "sft-accumulation-4",
    "dpo",
    "grpo",
    "grpo-generation-over-4-steps",
    "log-every-3-evaluate-each-epoch",
]


@pytest.mark.parametrize("kind", FROM_DISK)
def test_what_a_stock_checkpoint_leaves_out_is_gone_on_with_too(kind, trainings, undisturbed, tmp_path):
    """TRL's counts and generations, and losses that are not logged yet: the checkpoint is of a step without a log."""
    changes = {**SAVING, "save_steps": 4}
    job = {"kind": kind, "config": {"shared_memory": False}, "changes": changes}
    killed(trainings, tmp_path, "step", 6, **job)
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, undisturbed(kind))
    assert result["first"] == 4


@pytest.mark.parametrize("resume", ["auto", pytest.param(True, marks=pytest.mark.soak), "checkpoint-6"])
def test_so_it_is_where_resuming_is_asked_for(resume, trainings, undisturbed, tmp_path):
    job = {"kind": "sft", **ON_DISK}
    killed(trainings, tmp_path, "step", 8, **job)
    wanted = str(tmp_path / resume) if resume == "checkpoint-6" else resume
    assert_same(gone_on(trainings, tmp_path, resume=wanted, **job), undisturbed("sft"))


@pytest.mark.parametrize("harm", ["cut off", pytest.param("another version", marks=pytest.mark.soak), "gone"])
def test_a_checkpoint_whose_counts_cannot_be_read_is_still_a_checkpoint(harm, trainings, undisturbed, tmp_path):
    job = {"kind": "sft", **ON_DISK}
    killed(trainings, tmp_path, "step", 8, **job)
    path = tmp_path / "checkpoint-6" / "healing_state.json"
    (path.parent / "healing_manifest.json").unlink(missing_ok=True)  # what is read decides, not a checksum
    content = path.read_text()
    if harm == "gone":
        path.unlink()
    else:
        path.write_text(content[:-100] if harm == "cut off" else content.replace('"v": 1', '"v": 9'))
    result = gone_on(trainings, tmp_path, **job)
    assert (result["first"], result["weights"]) == (6, undisturbed("sft")["weights"])
    said = [text for text in notes(tmp_path, "resuming") if "counts begin anew" in text]
    assert len(said) == (0 if harm == "gone" else 1)


# -- workers that draw random numbers --------------------------------------------------------------------

EXACT = {"exact_data_resume": True}


@pytest.fixture(scope="module")
def whole(trainings, tmp_path_factory):
    """Guarded runs with exact data that nobody has killed, trained once each."""
    done = {}

    def get(kind, **job):
        key = json.dumps([kind, job])
        if key not in done:
            done[key] = gone_on(trainings, tmp_path_factory.mktemp("whole"), kind=kind, config=EXACT, **job)
        return done[key]

    return get


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize(
    "kind",
    [
        "drawing-workers",
        pytest.param("drawing-workers-that-persist", marks=pytest.mark.soak),
        "workers-with-generators",
    ],
)
def test_what_workers_draw_is_drawn_again_with_exact_data(kind, where, trainings, whole, tmp_path):
    """Killed in the middle of the second epoch and, in the third, at a step that another worker reads."""
    config = {**EXACT, "shared_memory": where == "memory"}
    job = {"kind": kind, "config": config, "changes": SAVING if where == "disk" else {}}
    killed(trainings, tmp_path, "step", 8, **job)
    killed(trainings, tmp_path, "step", 12, **job)
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, whole(kind))
    assert result["first"] == 9


def test_the_setting_alone_changes_what_workers_draw(trainings, undisturbed, whole, tmp_path):
    """Without it a run that nobody kills is the stock one, and one that is killed ends otherwise."""
    kind = "drawing-workers"
    assert_same(gone_on(trainings, tmp_path / "off", kind=kind), undisturbed(kind))
    assert whole(kind)["weights"] != undisturbed(kind)["weights"]
    killed(trainings, tmp_path / "killed", "step", 8, kind=kind)
    assert gone_on(trainings, tmp_path / "killed", kind=kind)["weights"] != undisturbed(kind)["weights"]


def test_what_workers_draw_does_not_depend_on_their_number(trainings, whole):
    more = {"changes": {"dataloader_num_workers": 3}}
    assert whole("drawing-workers", **more)["weights"] == whole("drawing-workers")["weights"]


def test_the_main_process_draws_as_always_and_a_stream_is_said_to_be_one(trainings, undisturbed, tmp_path):
    kind = "drawing-collator"
    assert_same(gone_on(trainings, tmp_path / "main", kind=kind, config=EXACT), undisturbed(kind))
    stream = {"kind": "finite-stream", "changes": {"dataloader_num_workers": 1}}
    gone_on(trainings, tmp_path / "stream", config=EXACT, **stream)
    (told,) = notes(tmp_path / "stream", "exact-data-resume")
    assert told.endswith("they are a stream")


# -- a machine that is taken away ------------------------------------------------------------------------


EVERY_3 = "log-every-3-evaluate-each-epoch"


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("sft", 5),
        ("accumulation-4", 5),
        (EVERY_3, 7),
        *(pytest.param(*each, marks=pytest.mark.soak) for each in (("sft", 9), ("dpo", 7), (EVERY_3, 9))),
    ],
)
def test_the_log_of_a_run_that_was_asked_to_end_has_all_its_entries(kind, step, trainings, undisturbed, tmp_path):
    """At the end of an epoch and in its middle, at a step that is logged and, by the last kind, at one that is not."""
    job = {"kind": kind, "config": {"shared_memory": False}}
    assert trainings.run(tmp_path, kill=("terminated", step), **job) == {"exit": 75}
    result = gone_on(trainings, tmp_path, **job)
    assert_same(result, undisturbed(kind))
    assert result["first"] == step


# -- what rules go by ------------------------------------------------------------------------------------


def signals(folder, name):
    return [entry for entry in read_ledger(folder / "healing" / "ledger.jsonl").entries if entry.name == name]


@pytest.fixture(scope="module")
def losses(trainings, tmp_path_factory):
    """What was observed of each step of a run that nobody has killed, whose ledger lacks nothing."""
    folder = tmp_path_factory.mktemp("observed")
    gone_on(trainings, folder)
    return [entry.body["values"]["loss"] for entry in signals(folder, "metrics") if "loss" in entry.body["values"]]


@pytest.mark.parametrize("where", ["memory", "disk", pytest.param("terminated", marks=pytest.mark.soak)])
def test_rules_go_on_with_the_past_of_the_state(where, trainings, losses, tmp_path):
    """Their past stands in the ledger, so that a replay decides as the run did."""
    job = ON_DISK if where == "disk" else {}
    if where == "terminated":
        assert trainings.run(tmp_path, kill=("terminated", 8)) == {"exit": 75}
    else:
        killed(trainings, tmp_path, "step", 8, **job)
    gone_on(trainings, tmp_path, steps=15, **job)
    at = 8 if where == "terminated" else 6
    (resumed,) = signals(tmp_path, "resumed")
    history = resumed.body["history"]
    assert (resumed.step, history["step"]) == (at, at)
    assert history["series"]["loss"]["admitted"] == losses[:at]
    known = max([resumed, *signals(tmp_path, "facts")], key=lambda entry: entry.seq)
    facts = known.body["facts"] if known is not resumed else history["facts"]
    assert facts["max_steps"] == 15, "what is known of the run by now counts"
    assert replay(open_recording(tmp_path / "healing" / "ledger.jsonl")).exact


def test_a_past_that_is_not_understood_costs_nothing(trainings, undisturbed, tmp_path):
    killed(trainings, tmp_path, "step", 8, **ON_DISK)
    path = tmp_path / "checkpoint-6" / "healing_state.json"
    (path.parent / "healing_manifest.json").unlink()
    content = json.loads(path.read_text())
    content["history"]["series"]["loss"] = 3
    path.write_text(json.dumps(content))
    assert_same(gone_on(trainings, tmp_path, **ON_DISK), undisturbed())
    assert len(notes(tmp_path, "history-not-understood")) == 1
    assert not notes(tmp_path, "healer-crashed")
