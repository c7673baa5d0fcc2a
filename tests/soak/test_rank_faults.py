"""Every fault of one rank at random steps, under DDP and FSDP2: healed by all or a clean restart, and never a deadlock.

`SELF_HEALING_RANK_RUNS` says how often each with two ranks, 50 unless told; with four it is a tenth of that.
"""

from __future__ import annotations

import os
import random
import shutil

import pytest

torch = pytest.importorskip("torch")

from ..integration.rank_launcher import launch  # noqa: E402

pytestmark = [pytest.mark.soak, pytest.mark.timeout(7200)]
RUNS = int(os.environ.get("SELF_HEALING_RANK_RUNS", "50"))
KINDS = ("ddp", "fsdp2")
STEPS = {2: 36, 4: 18}
LIMIT_S = 60.0
"""What a run takes at most, with all its restarts but one: about ten times what it takes."""
EXACT, NEARLY, SOUND = "to the bit", "but for rounding", "with other data"
CASES = {
    ("nan", "ddp"): (0, EXACT), ("nan", "fsdp2"): (0, EXACT),
    ("record", "ddp"): (0, SOUND), ("record", "fsdp2"): (0, SOUND),
    ("jump", "ddp"): (0, EXACT), ("jump", "fsdp2"): (0, EXACT),
    ("weight", "ddp"): (0, EXACT), ("weight", "fsdp2"): (0, EXACT),
    ("oom-forward", "ddp"): (0, EXACT), ("oom-forward", "fsdp2"): (1, NEARLY),
    ("oom-backward", "ddp"): (1, NEARLY), ("oom-backward", "fsdp2"): (1, NEARLY),
    ("oom-rows", "ddp"): (1, NEARLY), ("oom-rows", "fsdp2"): (1, NEARLY),
    ("kill", "ddp"): (1, EXACT), ("kill", "fsdp2"): (1, EXACT),
    ("stop", "ddp"): (1, EXACT), ("stop", "fsdp2"): (1, EXACT),
}  # fmt: skip
"""Restarts that a fault costs, and how the weights compare with those of a run without it."""


@pytest.fixture(scope="module", params=(2, 4))
def clean(request, tmp_path_factory):
    """What the bare loop comes to."""
    world, folder = request.param, tmp_path_factory.mktemp("clean")
    jobs = [["--out", str(folder / kind), "--kind", kind, "--bare"] for kind in KINDS]
    assert launch(folder, *jobs, world=world).is_done
    return world, {kind: torch.load(folder / kind / "rank-0.pt", weights_only=False)["weights"] for kind in KINDS}


def problem_of(folder, world, expected, how):
    """Say what is wrong with a run, if anything is."""
    try:
        told = [torch.load(folder / f"rank-{rank}.pt", weights_only=False) for rank in range(world)]
    except FileNotFoundError as error:
        return f"not ended: {error}"
    if {each["steps"] for each in told} != {STEPS[world]}:
        return f"steps {[each['steps'] for each in told]}"
    for name, value in told[0]["weights"].items():
        if any(not torch.equal(value, each["weights"][name]) for each in told[1:]):
            return f"{name} differs between the ranks"
        if not bool(torch.isfinite(value).all()):
            return f"{name} is not finite"
        most = {EXACT: 0.0, NEARLY: 1e-5, SOUND: float("inf")}[how]
        if float((value - expected[name]).abs().max()) > most:
            return f"{name} is off by {float((value - expected[name]).abs().max()):.3g}"
    return None


@pytest.mark.parametrize(("fault", "kind"), list(CASES))
def test_a_fault_at_any_step_is_healed_by_all_or_all_start_again(fault, kind, clean, tmp_path):
    world, weights = clean
    restarts, how = CASES[fault, kind]
    if restarts and kind == "ddp" and world > 2:
        how = NEARLY  # the first backward pass of any DDP adds up in another order than those that follow it
    dice, steps = random.Random(f"{fault} {kind} {world}"), STEPS[world]
    jobs = []
    for number in range(RUNS if world == 2 else max(1, RUNS // 10)):
        at = dice.randrange(2, steps)
        jobs.append((at, ["--out", str(tmp_path / str(number)), "--kind", kind, "--fault", fault, "--at", str(at),
                          "--record", str(dice.randrange(96))]))  # fmt: skip
    codes = {}
    if restarts:
        for number, (_, job) in enumerate(jobs):
            codes[number] = launch(
                tmp_path / f"l{number}", job, world=world, restarts=restarts, patience_s=LIMIT_S
            ).codes
    else:
        codes[0] = launch(tmp_path / "l", *(job for _, job in jobs), world=world, patience_s=LIMIT_S * len(jobs)).codes
    problems = []
    for number, (at, job) in enumerate(jobs):
        problem = problem_of(tmp_path / str(number), world, weights[kind], how)
        if problem is not None:
            problems.append(f"at {at} {job[-1]}: {problem} {codes.get(number)}")
        else:
            shutil.rmtree(tmp_path / str(number))
    print(f"{fault} {kind} {world} ranks: {len(jobs) - len(problems)} of {len(jobs)} well")
    assert not problems, "\n".join(problems)
