"""Decisions about memory: which tactic is next, what is remembered, when it grows back; numbers only."""

from __future__ import annotations

import pytest

from self_healing.adapters.memory.memory_plan import PLAIN, AllocatorWatch, Choice, Ladder, MemoryPlan, Shape, Tactic

CHECKPOINTING = Tactic(checkpointing=True)
USUAL = Shape(8, 512)
FULL = Ladder(rows=8, can_checkpoint=True, can_split=True)


def climb(ladder, tactic=PLAIN):
    tactics = []
    while tactic is not None:
        tactics.append(tactic)
        tactic = ladder.stronger(tactic)
    return tactics


def pieces(*rows, checkpointing=False):
    return [Tactic(most_rows=most, checkpointing=checkpointing) for most in rows]


@pytest.mark.parametrize(
    ("ladder", "tactics"),
    [
        (FULL, [PLAIN, CHECKPOINTING, *pieces(4, 2, 1), *pieces(1, checkpointing=True)]),
        (Ladder(5, can_checkpoint=True, can_split=True), [PLAIN, CHECKPOINTING, *pieces(3, 2, 1), *pieces(1, checkpointing=True)]),
        (Ladder(8, can_checkpoint=False, can_split=True), [PLAIN, *pieces(4, 2, 1)]),
        (Ladder(8, can_checkpoint=True, can_split=False), [PLAIN, CHECKPOINTING]),
        (Ladder(1, can_checkpoint=True, can_split=True), [PLAIN, CHECKPOINTING]),
        (Ladder(1, can_checkpoint=False, can_split=True), [PLAIN]),
    ],
)  # fmt: skip
def test_the_ladder_goes_from_exact_to_slow_and_ends(ladder, tactics):
    assert climb(ladder) == tactics
    assert sorted(tactics, key=lambda tactic: tactic.strength) == tactics, "each rung needs less memory"


def test_every_rung_has_a_milder_one_down_to_the_trainers_own_way():
    down = [Tactic(most_rows=1, checkpointing=True)]
    while down[-1] != PLAIN:
        down.append(FULL.milder(down[-1]))
    assert down == [*pieces(1, checkpointing=True), *pieces(1, 2, 4), CHECKPOINTING, PLAIN]
    without = Ladder(8, can_checkpoint=False, can_split=True)
    assert without.milder(Tactic(most_rows=4)) == PLAIN


def learnt(tactic, shape=USUAL, step=0):
    plan = MemoryPlan()
    plan.needed(shape, step, tactic, Choice(PLAIN), FULL)
    return plan


def test_what_worked_is_used_for_batches_of_that_size_or_larger_only():
    plan = learnt(Tactic(most_rows=2))
    for shape, expected in {
        Shape(8, 512): Tactic(most_rows=2),
        Shape(16, 512): Tactic(most_rows=2),
        Shape(8, 1024): Tactic(most_rows=2),
        Shape(4, 512): PLAIN,
        Shape(8, 256): PLAIN,
        Shape(4, 4096): PLAIN,
    }.items():
        assert plan.choose(shape, 1, FULL).tactic == expected, shape


def test_lengths_that_differ_little_share_a_lesson():
    plan = learnt(CHECKPOINTING, Shape(8, 1000))
    assert plan.choose(Shape(8, 950), 1, FULL).tactic == CHECKPOINTING
    assert plan.choose(Shape(8, 800), 1, FULL).tactic == PLAIN
    assert [Shape(1, length).bucket().length for length in (0, 1, 5, 9, 12, 1023, 1024)] == [0, 1, 5, 8, 12, 896, 1024]


def test_the_strongest_lesson_counts_and_superfluous_ones_are_dropped():
    plan = learnt(CHECKPOINTING, Shape(8, 512))
    plan.needed(Shape(8, 1024), 1, Tactic(most_rows=2), Choice(CHECKPOINTING), FULL)
    assert plan.choose(Shape(8, 512), 2, FULL).tactic == CHECKPOINTING
    assert plan.choose(Shape(8, 2048), 2, FULL).tactic == Tactic(most_rows=2)
    plan.needed(Shape(4, 512), 3, Tactic(most_rows=1), Choice(PLAIN), FULL)
    assert list(plan.lessons) == [Shape(4, 512)], "it says all that the others did"


def test_after_a_quiet_time_a_milder_tactic_is_tried_and_kept_if_it_works():
    plan = learnt(Tactic(most_rows=4))
    assert plan.choose(Shape(8, 512), 199, FULL) == Choice(Tactic(most_rows=4))
    trial = plan.choose(Shape(8, 512), 200, FULL)
    assert trial == Choice(CHECKPOINTING, tries_milder_than=Shape(8, 512))
    assert plan.went_well(trial, 200)
    assert plan.choose(Shape(8, 512), 399, FULL) == Choice(CHECKPOINTING)
    trial = plan.choose(Shape(8, 512), 400, FULL)
    assert trial.tactic == PLAIN
    plan.went_well(trial, 400)
    assert plan.choose(Shape(8, 512), 10_000, FULL) == Choice(PLAIN)


def test_each_failed_trial_doubles_the_quiet_time():
    plan = learnt(CHECKPOINTING)
    waits, step = [], 0
    for _ in range(4):
        last = step
        while plan.choose(Shape(8, 512), step, FULL).tries_milder_than is None:
            step += 1
        waits.append(step - last)
        plan.needed(Shape(8, 512), step, CHECKPOINTING, plan.choose(Shape(8, 512), step, FULL), FULL)
    assert waits == [200, 400, 800, 1600]


def test_trouble_after_growing_back_waits_longer_the_next_time():
    plan = learnt(CHECKPOINTING)
    plan.went_well(plan.choose(Shape(8, 512), 200, FULL), 200)
    plan.needed(Shape(8, 512), 300, CHECKPOINTING, plan.choose(Shape(8, 512), 300, FULL), FULL)
    assert plan.choose(Shape(8, 512), 699, FULL).tries_milder_than is None
    assert plan.choose(Shape(8, 512), 700, FULL).tries_milder_than is not None


def test_one_chance_shortage_teaches_nothing_and_two_close_ones_do():
    plan = learnt(PLAIN, step=10)
    assert plan.lessons == {}
    plan.needed(Shape(8, 512), 300, PLAIN, Choice(PLAIN), FULL)
    assert plan.lessons == {}, "long after the first"
    plan.needed(Shape(8, 512), 340, PLAIN, Choice(PLAIN), FULL)
    assert plan.choose(Shape(8, 512), 341, FULL).tactic == CHECKPOINTING


def test_shrinking_takes_one_rung_at_a_time_and_knows_the_end():
    plan = MemoryPlan()
    taken = [plan.shrink(Shape(8, 512), step, FULL) for step in range(6)]
    assert taken == [CHECKPOINTING, *pieces(4, 2, 1), *pieces(1, checkpointing=True), None]


@pytest.mark.parametrize(
    ("retries", "alarms"),
    [
        ([0, 0, 0, 0], [False] * 4),
        ([0, 1, 2, 2], [False, False, True, False]),
        ([0, 1, 1, 2, 2], [False] * 5),
        ([5, 6, 7, 8, 9], [False, False, True, False, True]),
    ],
)
def test_thrashing_is_two_rises_in_a_row(retries, alarms):
    watch = AllocatorWatch()
    assert [watch.observe(step, count) for step, count in enumerate(retries)] == alarms


def test_steps_that_were_not_seen_are_not_in_a_row():
    watch = AllocatorWatch()
    assert not any(watch.observe(step, count) for step, count in ((0, 0), (1, 1), (5, 9), (6, 10)))
    assert watch.observe(7, 11)


def test_the_allocator_is_looked_at_seldom_until_it_flushes():
    """Its count grows at steps 20, 21 and 22."""
    watch, looks, alarms = AllocatorWatch(), [], []
    for step in range(40):
        if watch.is_due(step):
            looks.append(step)
            alarms += [step] if watch.observe(step, sum(step > flush for flush in (20, 21, 22, 23, 24, 25))) else []
    assert looks == [0, 1, 9, 17, 25, 26, 27, 35]
    assert alarms == []
    watch = AllocatorWatch()
    alarms = [step for step in range(40) if watch.is_due(step) and watch.observe(step, max(0, step - 20))]
    assert alarms == [27, 29, 31, 33, 35, 37, 39]
    assert not watch.is_due(39)
    assert watch.is_due(40)


def test_tactics_read_well():
    told = [str(tactic) for tactic in (PLAIN, CHECKPOINTING, *pieces(2, 1), *pieces(1, checkpointing=True))]
    assert told == [
        "whole micro-batch",
        "gradient checkpointing",
        "pieces of at most 2 rows",
        "pieces of at most 1 row",
        "pieces of at most 1 row with gradient checkpointing",
    ]


def test_a_batch_whose_records_have_no_length_yet_is_said_by_their_number():
    assert str(Shape(32, 0)) == "32 records", "such as the prompts of a generation"
    assert str(USUAL) == "8 x 512"
