"""Alerts on their way: real servers on this machine, among them one that hangs, one that refuses and one that fails."""

from __future__ import annotations

import contextvars
import json
import logging
import sys
import threading
import time

import pytest

from self_healing.core.ledger import Entry, Ledger, read_ledger
from self_healing.core.secrets import secrets_of_url
from self_healing.tracking import webhook
from self_healing.tracking.alert_office import MOST_ENTRIES, AlertOffice
from self_healing.tracking.courier import Courier
from self_healing.tracking.message import Message
from self_healing.tracking.notify import MISSING

from .loopback_servers import answering, hanging, refusing

SECRET = "/services/T0SECRET99/B1SECRET99/averylongtokenthatnobodymaysee"


def reflex(step=1, because="a loss was not finite"):
    body = {"incident": "step-not-finite", "because": because, "actions": ["skip-step"], "said": "made up: 1"}
    return Entry(1, 1, 1, 0.0, step, 0, "note", "reflex", {"failure": "nan_loss", **body})


class Notes:
    """Remarks for the ledger, by whichever thread."""

    def __init__(self):
        self.all = []

    def __call__(self, name, text):
        self.all.append((name, text))

    def __str__(self):
        return json.dumps(self.all)


@pytest.fixture
def notes():
    return Notes()


def opened(notes, *urls):
    return AlertOffice(run="tiny", urls=urls, note=notes, environ={})


def test_a_webhook_gets_the_alert_as_json_without_apprise(notes):
    with answering() as (address, posted):
        office = opened(notes, address + "/hook")
        office.pages["trackio"] = "https://huggingface.co/spaces/me/board"
        for step in range(5):
            office.take(reflex(step))
        office.close()
    ((path, kind, body),) = posted
    assert (path, kind) == ("/hook", "application/json")
    assert body.pop("time").endswith("Z")
    assert body == {
        "v": 1, "level": "WARN", "title": "step-not-finite: skip-step", "run": "tiny", "step": 4, "first_step": 0, "count": 5,
        "incident": "step-not-finite", "references": [], "pages": ["https://huggingface.co/spaces/me/board"],
        "text": "Seen at step 4: a loss was not finite\nDone: made up: 1\n5 times, steps 0 to 4\n"
                "See https://huggingface.co/spaces/me/board",
    }  # fmt: skip
    assert office.losses() == []
    assert notes.all == []


def test_places_that_do_not_take_an_alert_are_counted_told_once_and_keep_nothing_from_the_others(notes, caplog):
    with answering() as (good, posted), answering(500) as (broken, tried), hanging() as stuck, refusing() as closed:
        office = opened(notes, stuck + SECRET, closed + SECRET, broken + SECRET, good + SECRET)
        office.take(reflex(1))
        office.flush(timeout_s=0.5)
        while len(tried) < 2:  # what may pass by itself is tried again
            time.sleep(0.01)
        office.take(Entry(1, 2, 1, 0.0, 2, 0, "note", "killed", {"text": "killed"}))
        office.close(timeout_s=0.5)
        assert [body["title"] for _, _, body in posted] == ["step-not-finite: skip-step", "killed"]
    names = [f"{address}/***" for address in (stuck, closed, broken)]
    assert sorted(office.losses()) == sorted(f"2 of 2 alerts to {name} were lost" for name in names)
    assert sorted(name for name, _ in notes.all) == ["alert-lost"] * 3, "once for each"
    assert "SECRET" not in str(notes) + caplog.text
    assert "averylongtoken" not in str(notes) + caplog.text
    assert "it answered 500" in str(notes)


@pytest.mark.parametrize(("status", "location"), [(404, None), (302, "/elsewhere")])
def test_an_answer_that_will_not_change_is_not_asked_for_again(notes, status, location):
    with answering(status, location) as (address, posted):
        office = opened(notes, address + "/hook")
        office.take(reflex())
        office.close()
    assert len(posted) == 1
    assert office.losses() == [f"1 of 1 alerts to {address}/*** were lost"]
    assert f"it answered {status}" in str(notes)


def test_taking_an_entry_never_waits_whatever_the_sinks_do(notes):
    release = threading.Event()
    office = opened(notes)
    office.add_sink("a wall", lambda message: release.wait(60))
    for step in range(3 * MOST_ENTRIES):
        office.take(Entry(1, 1, 1, 0.0, step, 0, "note", "killed", {"text": "x"}))
    assert not office.flush(timeout_s=0.2)
    release.set()
    office.close()
    assert office.sinks[0].sent == 1


def test_a_courier_loses_what_is_too_much_and_says_how_much():
    release, over = threading.Event(), []
    courier = Courier("test", most_waiting=3)
    first = courier.send(lambda: release.wait(60), over.append)
    while courier._waiting:  # the first one is at hand
        pass
    parcels = [courier.send(lambda: None, over.append) for _ in range(5)]
    assert [parcel.is_lost for parcel in parcels] == [False, False, False, True, True]
    assert not first.is_over
    courier.close(0.0)
    assert all(parcel.is_lost for parcel in (first, *parcels)), "nothing waits for what was not delivered by then"
    release.set()
    assert len(over) == 6, "each is over once"
    assert courier.send(lambda: None).is_lost


def test_a_courier_delivers_in_the_context_of_the_sender_and_can_give_it_back():
    variable = contextvars.ContextVar("run", default="none")
    variable.set("mine")
    courier, seen = Courier("test"), []

    def deliver():
        seen.append(variable.get())
        variable.set("finished")

    parcel = courier.send(deliver)
    assert parcel.wait(10)
    assert (seen, variable.get()) == (["mine"], "mine")
    parcel.take_over_context()
    assert variable.get() == "finished"
    courier.close(1.0)


def test_an_alert_of_a_bug_of_ours_ends_the_alerts_and_not_the_run(notes, caplog):
    office = opened(notes)
    office._entries.append("no entry at all")
    office.take(reflex())
    office.close()
    assert notes.all[0][0] == "alerts-crashed"
    office.take(reflex())  # and nothing is raised


def test_the_log_has_every_alert_that_it_does_not_have_yet(notes, caplog):
    caplog.set_level(logging.INFO, "self_healing.alerts")
    office = opened(notes)
    office.take(reflex(because="with \x1b[31mcolours"))
    office.take(Entry(1, 2, 1, 0.0, 2, 0, "note", "interrupted", {"text": "logged by whoever noted it"}))
    office.close()
    ((level, text),) = [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "self_healing.alerts"]
    assert level == "WARNING"
    assert text == "step-not-finite: skip-step | Seen at step 1: with colours | Done: made up: 1"


def test_two_services_get_what_they_understand():
    alert = Message(
        level="ERROR", title="t", text="x" * 3000, run="r", step=1, first_step=1, count=1, incident="i", references=(),
        pages=(), time="",
    )  # fmt: skip
    assert webhook.payload("https://hooks.slack.com/services/a/b", alert).keys() == {"text"}
    assert len(webhook.payload("https://discord.com/api/webhooks/1/x", alert)["content"]) == 2000
    assert webhook.payload("https://example.com/discord.com", alert) == alert.to_json()


def test_apprise_takes_the_other_addresses(notes):
    pytest.importorskip("apprise")
    with answering() as (address, posted):
        office = opened(notes, address.replace("http://", "json://") + "/hook", "nosuchservice://averysecrettoken1")
        office.take(reflex())
        office.close()
    ((path, _, body),) = posted
    assert path.rstrip("/") == "/hook"
    assert body["title"] == "WARN: step-not-finite: skip-step"
    assert body["type"] == "warning"
    assert office.losses() == ["1 of 1 alerts to nosuchservice://*** were lost"]
    assert "averysecrettoken1" not in str(notes)


def test_without_apprise_it_is_said_what_to_install(notes, monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)  # as though it were not installed
    office = opened(notes, "tgram://123456:averysecrettoken/chat")
    office.take(reflex())
    office.close()
    assert office.losses() == ["1 of 1 alerts to tgram://*** were lost"]
    ((name, text),) = notes.all
    assert name == "alert-lost"
    assert MISSING in text
    assert "averysecrettoken" not in text


def test_a_ledger_shows_everything_but_signals_to_whoever_listens_and_masks_what_it_is_told(tmp_path):
    seen = []
    url = "https://example.com" + SECRET
    ledger = Ledger(tmp_path, environ={}, secrets=secrets_of_url(url), on_entry=seen.append)
    ledger.append("signal", "metrics", step=1, time_s=0.0, body={"values": {"loss": 1.0}})
    ledger.append("note", "failed", step=1, time_s=0.0, body={"text": f"cannot reach {url}: T0SECRET99"})
    ledger.close()
    assert [entry.name for entry in seen] == ["failed"]
    (_, note) = read_ledger(ledger.path).entries
    assert note.body["text"] == "cannot reach ***: ***"
