"""The postmortem of an attempt that was killed is written by the next one, which knows more than the ledger and less than all."""

from __future__ import annotations

from .test_postmortem import entry, postmortem


def test_the_next_attempt_knows_more_of_one_that_was_killed():
    seen = [entry(1, "config", "resolved-configuration"), entry(2, "signal", "metrics", step=9, values={})]
    told = postmortem(seen, "killed", last_step=12, quarantined=["record 3 is odd"])
    assert (told.last_step, told.attempts[0]["last_step"]) == (12, 12)
    assert told.data_quarantined == [{"step": None, "attempt": None, "said": "record 3 is odd"}]
    assert told.incomplete[0].endswith("its last step is 12 at least")
    assert postmortem(seen, "killed", last_step=4).last_step == 9, "the ledger may know more"
    noted = entry(4, "note", "record-left-out", attempt=2, text="record 3 is odd")
    later = [
        entry(3, "config", "resolved-configuration", step=9, attempt=2), noted,
        entry(5, "note", "killed", attempt=2, last_step=12, of=1),
        entry(6, "signal", "facts", step=12, attempt=2, facts={}),
        entry(7, "signal", "metrics", step=13, attempt=2, values={}),
    ]  # fmt: skip
    told = postmortem([*seen, *later], quarantined=["record 3 is odd"])
    assert [(each["first_step"], each["last_step"]) for each in told.attempts] == [(8, 12), (12, 13)]
    assert len(told.data_quarantined) == 1
    assert told.incomplete == [
        "attempt 1 was killed: up to 1 s of its ledger may be missing, and its last step is 12 at least"
    ]
