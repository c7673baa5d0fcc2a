"""Between a run and the healer: observations go in, plans are carried out, and everything is written down."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...api import OpenRun
from ...core.errors import ExitCode
from ...core.failure import Mode
from ...core.goodput import TimeAccount
from ...core.ledger import Entry, LedgerReading
from ...core.notes import ENDED, REFLEX
from ...core.plan import Outcome, Plan
from ...core.run_directory import ledger_path, run_directory_of, supervisor_ledger_path
from ...core.run_ledgers import iter_run
from ...core.secrets import secrets_of_urls
from ...core.signal import Completed, Fact, Facts, Metrics, Resumed, ReturnDropped, Signal
from ...core.voting import Voting
from ...report.clean import seconds_of
from ...report.environment import hardware, versions
from ...report.postmortem import build_postmortem, postmortem_path
from ...report.write import write_json_atomically
from ...tracking.alert_office import AlertOffice
from ..ending.exit_codes import end_with, exit_code_of, helps_elsewhere, is_for_good
from ..ending.killed_attempt import listed_since, reached_at_least
from ..ending.last_attempt import LastAttempt, last_attempt
from .heart import Heart
from .reflexes import Reflex

if TYPE_CHECKING:
    from ...config import HealingConfig

logger = logging.getLogger("self_healing.trainer")

RECIPE_FACTS = ("beta", "num_iterations", "desirable_weight", "undesirable_weight")
"""Arguments of RL and preference trainers that causes look at."""


class RunDesk:
    """The healer of one training, its ledger, and the abilities of the run that its plans are carried out with."""

    def __init__(
        self,
        args: Any,
        config: HealingConfig,
        abilities: Any,
        *,
        mode: Mode,
        step: Callable[[], int],
        account: TimeAccount,
        heals: bool,
        resumes: bool = False,
        starts_over: bool = False,
    ) -> None:
        self.args = args
        self.config = config
        self.abilities = abilities
        self.mode = mode
        self.step = step
        """Returns the global step."""
        self.resumes = resumes
        self.starts_over = starts_over
        """What was cut short in the folder is not gone on with, because the user says so."""
        self.continues = resumes
        """The folder's last attempt belongs to the same run; known for good once it is open."""
        self.unread: deque[Callable[[], None]] = deque()
        """What takes in the steps that nobody has taken note of yet, before anything else is looked at."""
        self.waiting: deque[Signal] = deque()
        """What was seen and is looked at when everything is in order for what may follow from it."""
        self.brought_to_light: deque[Signal] = deque()
        """What was found out while a plan was carried out: the core knows of it before it makes the next one."""
        self.last_metrics: dict[str, float] = {}
        self.seconds_acting = 0.0
        """The time that plans and reflexes have taken."""
        self._secrets = secrets_of_urls(config.alert_urls)
        self._rank = int(args.process_index)
        is_first = self._rank == 0  # the others see the same, and would say it again
        run_name = Path(args.output_dir).resolve().name
        self.alerts = AlertOffice(run=run_name, urls=config.alert_urls if is_first else (), note=self.note)
        self._tells = is_first
        self.heart = Heart(args, account, step, heals=heals, clock=time.perf_counter)
        self._gave_up: Plan | None = None
        """The plan that has ended the run."""
        self.voting: Voting | None = None
        """Keeps wishes until all ranks vote on them, where there are several; else each is carried out at once."""

    def open(self) -> None:
        """Take the folder, which `close` gives back; nobody else can use it in between."""
        from ...config.keys import SWITCH

        args = self.args
        before = last_attempt(ledger_path(args.output_dir, args.process_index))
        was_killed = before is not None and before.was_killed
        # Else the folder was another run's, whose troubles are not this one's.
        self.continues = self.resumes or (was_killed and not self.starts_over)
        self.opened = OpenRun(
            args.output_dir,
            self.config,
            self.abilities,
            rank=args.process_index,
            continues=self.continues,
            environ={**os.environ, SWITCH: self.mode},
            on_entry=self._written,
        )
        with ExitStack() as undo:  # what fails here must not leave the folder taken
            undo.callback(self.opened.close)
            self.healer = self.opened.healer
            self._started_s = time.time()
            if self._tells and hasattr(self.abilities, "alerted_by"):
                self.abilities.alerted_by = self.alerts.describe
            if before is not None and before.was_killed:
                self._tell_of_a_kill(before)
            ledger = self.opened.ledger
            attempt = ledger.attempt if ledger is not None else 0
            self.heart.begin(attempt, lambda text: self.record("no-heartbeat", {"text": text}))
            undo.pop_all()

    def close(self) -> None:
        """Write what is left of the ledger and let others write to the directory."""
        self.alerts.close()
        self.heart.stop()
        self.opened.close()
        step = self.step()
        self.step = lambda: step  # whoever could tell is held on to no longer

    # -- observing and acting ------------------------------------------------------------------------

    def look_later(self, step: int, values: dict[str, float]) -> None:
        """Let the metrics of a step wait for `settle`."""
        self.last_metrics = values
        self.waiting.append(Metrics(step=step, time_s=time.time(), values=values))

    def look(self, values: Mapping[str, Any] | None) -> None:
        """Look at metrics now; what is not a number is left out."""
        numbers = {k: float(v) for k, v in (values or {}).items() if isinstance(v, int | float)}
        if numbers:
            self.signal(Metrics(step=self.step(), time_s=time.time(), values=numbers))

    def learn(self, facts: dict[str, Fact]) -> None:
        """Tell the healer what is known of the run."""
        self.signal(Facts(step=self.step(), time_s=time.time(), facts=facts))

    def go_on_with(self, history: Mapping[str, Any] | None) -> None:
        """Let the rules have the past of the state that the run goes on from; what is known of the run by now counts.

        It stands in the ledger, so that a replay decides alike.
        """
        if history is None:
            return
        if not self.healer.understands(history):
            self.note(
                "history-not-understood", "the history of the state is not understood: rules begin without a past"
            )
            return
        facts = {**history["facts"], **self.healer.history.facts}
        self.signal(Resumed(step=self.step(), time_s=time.time(), history={**history, "facts": facts}))

    def signal(self, seen: Signal) -> Plan | None:
        """Let the healer decide and do; return the last plan it made."""
        self.settle()
        return self._carry_out(self._observe(seen))

    def tell_of_move(self, seen: Signal) -> None:
        """Tell the healer what became of a move; where the run ends without it, nothing is to follow from that."""
        if isinstance(seen, ReturnDropped) and not seen.goes_on:
            self._observe(seen)
        else:
            self.signal(seen)

    def settle(self) -> None:
        """Look at the observations that wait, in their order, and do what follows from each before the next one."""
        self.take_in_the_unread()
        while self.waiting:
            self._carry_out(self._observe(self.waiting.popleft()))

    def forget_what_waits(self) -> None:
        """Let go of what was seen and not looked at yet: the steps it was seen of are undone."""
        self.unread.clear()
        self.waiting.clear()

    def finish(self) -> None:
        """Look at what is left at the end of a run; what would follow from it is not done any more."""
        self.take_in_the_unread()
        while self.waiting:
            self._observe(self.waiting.popleft())

    def _observe(self, seen: Signal) -> Plan | None:
        """Let the healer look at what this process has seen."""
        return self.healer.observe(seen if seen.rank == self._rank else replace(seen, rank=self._rank))

    def take_in_the_unread(self) -> None:
        """Take in the steps that have waited, so that there is something to look at of each."""
        while self.unread:
            self.unread.popleft()()

    def _carry_out(self, wish: Plan | None) -> Plan | None:
        if self.voting is not None:
            self.voting.wish(wish)
            return wish
        healer = self.healer
        plan = last = wish
        while plan is not None:
            last = plan
            outcome = healer.act(plan, self.abilities, time.perf_counter)
            if outcome is not None:
                self.was_done(outcome, plan)
            plan = self._wish_for_what_came_to_light()
            if plan is None and outcome is not None:
                plan = healer.next_plan(outcome)
        return last

    def _wish_for_what_came_to_light(self) -> Plan | None:
        """Let the healer look at what a plan has brought to light; return the last plan it made of it."""
        wish: Plan | None = None
        while self.brought_to_light:
            wish = self._observe(self.brought_to_light.popleft()) or wish
        return wish

    def was_done(self, outcome: Outcome, plan: Plan | None = None) -> None:
        """Take note of a plan that was carried out, whatever came of it."""
        plan = plan or outcome.plan
        if any(action.is_final for action in plan.actions):
            self._gave_up = plan

    def only_show(self, because: str) -> None:
        """Carry out no plan from now on that asks something of the run."""
        self.note("plans-only-shown", because)
        if self.mode is Mode.HEAL:
            self.mode = Mode.ADVISE
            self.healer.settings = replace(self.healer.settings, mode=Mode.ADVISE)

    # -- writing down --------------------------------------------------------------------------------

    def note(self, name: str, text: str, *, level: int = logging.WARNING) -> None:
        """Write a remark into the ledger and the log."""
        logger.log(level, "%s", text)
        self._write(name, self.step(), {"text": text})

    def record(self, name: str, body: dict[str, Any]) -> None:
        """Write something into the ledger that is not worth a line of the log."""
        self._write(name, self.step(), body)

    def seen_at(self, pages: Mapping[str, str]) -> None:
        """Say where the run is to be seen: in the log, in every alert from now on, and in the postmortem."""
        for tracker, page in pages.items():
            if self.alerts.pages.get(tracker) != page:
                self.alerts.pages[tracker] = page
                logger.info("this run is to be seen at %s", page)
                self.record("tracker-page", {"text": f"{tracker}: {page}", "tracker": tracker, "page": page})

    def reflex(self, reflex: Reflex) -> None:
        """Record what was done at once, inside a step."""
        self._write(REFLEX, reflex.step, reflex.body())

    def ended(self, exit_reason: str, error: BaseException | None, figures: Mapping[str, float]) -> None:
        """Write how the run ended: a line in the ledger, the postmortem, and one sentence in the log."""
        self.finish()
        if exit_reason == "completed":
            self._observe(Completed(step=self.step(), time_s=time.time()))
        code = self.exit_code(exit_reason)
        self.heart.ends(exit_reason, code)
        if code in (ExitCode.GAVE_UP, ExitCode.DEVICE_LOST) and error is not None:
            end_with(error, code)
        ledger, step = self.opened.ledger, self.step()
        if ledger is None:
            return
        told = {"exit_reason": exit_reason, "exception": type(error).__name__ if error is not None else None}
        for losses in self.alerts.losses():
            self.record("alerts-lost", {"text": losses})
        self._write(ENDED, step, told)
        if self.args.process_index != 0:
            return
        self._write_postmortem(
            exit_reason=exit_reason,
            exception=error,
            last_step=step,
            final_metrics={**self.last_metrics, **figures},
            started_s=self._started_s,
            ended_s=time.time(),
        )

    def exit_code(self, exit_reason: str) -> int | None:
        """Return what an end asks whoever has started the process for, None where nothing of ours has decided it."""
        plan = self._gave_up
        if plan is not None and exit_reason == "unrecoverable" and helps_elsewhere(plan):
            return ExitCode.DEVICE_LOST
        # Only a rehearsal gives up without a plan.
        gave_up = exit_reason == "unrecoverable" if plan is None else is_for_good(plan, self.healer.memory)
        return exit_code_of(exit_reason, self.config.preemption_signals, is_for_good=gave_up)

    def _tell_of_a_kill(self, before: LastAttempt) -> None:
        """Write the postmortem of the attempt before this one, where its process had no time to write one."""
        ledger = self.opened.ledger
        if ledger is not None and self.args.process_index == 0:
            text = "the attempt before this one was killed: its postmortem is written now"
            logger.warning("%s", text)
            step = reached_at_least(before, self.args)
            self._write("killed", step, {"text": text, "of": before.number, "last_step": step})
            self._write_postmortem(
                exit_reason="killed",
                exception=None,
                last_step=step,
                quarantined=[record.sentence() for record in listed_since(before, self.args.output_dir)],
                final_metrics=None,
                started_s=None,
                ended_s=None,
                up_to=before.number,
            )

    def _write_postmortem(self, *, up_to: int | None = None, **told: Any) -> None:
        assert self.opened.ledger is not None
        self.opened.ledger.flush()
        reading = LedgerReading()
        supervisors = supervisor_ledger_path(run_directory_of(os.environ) or self.args.output_dir)
        entries = iter_run(self.opened.ledger.path, supervisors, reading, up_to=up_to)
        postmortem = build_postmortem(
            entries, versions=versions(), hardware=hardware(), reading=reading, secrets=self._secrets, **told
        )
        path = postmortem_path(self.args.output_dir)
        if write_json_atomically(path, postmortem.to_json()):
            logger.info("%s at step %d; the postmortem is %s", postmortem.exit_reason, postmortem.last_step, path)

    def _written(self, entry: Entry) -> None:
        """Look at a line that goes into the ledger: by whichever thread wrote it, so that nothing here may wait."""
        if entry.kind == "outcome" or (entry.kind == "note" and entry.name == REFLEX):
            self.seconds_acting += seconds_of(entry.body.get("seconds"))
        if self._tells:
            self.alerts.take(entry)

    def _write(self, name: str, step: int, body: dict[str, Any]) -> None:
        if self.opened.ledger is not None:
            self.opened.ledger.append("note", name, step=step, time_s=time.time(), body=body)


def facts_of_run(args: Any, state: Any, model: Any) -> dict[str, Fact]:
    """Return what the arguments and the model say about a training."""
    facts: dict[str, Fact] = {
        "max_steps": int(state.max_steps),
        "warmup_steps": int(args.get_warmup_steps(state.max_steps)),
        "max_grad_norm": float(args.max_grad_norm),
        "precision": "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32",
        "weight_decay": float(args.weight_decay),
    }
    for name in RECIPE_FACTS:  # of TRL's configurations
        value = getattr(args, name, None)
        if isinstance(value, int | float):
            facts[name] = float(value)
    vocabulary = getattr(getattr(model, "config", None), "vocab_size", None)
    if isinstance(vocabulary, int):
        facts["vocab_size"] = vocabulary
    return facts
