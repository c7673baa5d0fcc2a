"""One guarded `train()` of a Hugging Face Trainer: signals out of the loop, plans into it."""

from __future__ import annotations

import logging
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..api import OpenRun
from ..core.errors import ActionFailed
from ..core.failure import Effect, Mode
from ..core.ledger import LedgerReading, iter_ledger
from ..core.plan import Plan
from ..core.signal import Fact, Facts, Metrics, Raised, Signal, SnapshotTaken
from ..report.environment import hardware, versions
from ..report.postmortem import build_postmortem, postmortem_path
from ..report.write import write_json_atomically
from .checkpoint_folders import newest_usable
from .examination import Examiner
from .exceptions import describe
from .interrupts import WARNINGS, Interrupts
from .window import Window
from .wrapping import Wrapping

if TYPE_CHECKING:
    from ..config import HealingConfig

logger = logging.getLogger("self_healing.trainer")


class RestartFromError(Exception):
    """Leaves the training loop so that it can be entered again from a checkpoint."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path


@dataclass(frozen=True, slots=True)
class Restored:
    """The state a rollback returned to."""

    key: str
    step: int


class TrainerSession:
    """What an adapter is to the core: it emits signals, and its methods are the run's capabilities."""

    def __init__(self, trainer: Any, config: HealingConfig, mode: Mode) -> None:
        from ..tensors.adagc import AdaGC
        from ..tensors.gate import GradientGate
        from ..tensors.zclip import ZClip
        from .trainer_guard import TrainerGuard

        self.trainer = trainer
        self.config = config
        self.mode = mode
        acts = mode is Mode.HEAL
        may_clip = acts and config.settings().max_effect is Effect.RECIPE
        always = ZClip(z_threshold=config.zclip_z_threshold) if _clips_always(config) and may_clip else None
        per_tensor = AdaGC() if config.adagc_enabled and may_clip and always is None else None
        gate = GradientGate(clip_outliers=may_clip and config.zclip_enabled, always=always, per_tensor=per_tensor)
        self.guard = TrainerGuard(trainer, gate, acts=acts)
        self.guard.on_unsound = self._examine
        self._examiner = Examiner(trainer)
        self._found_unsound = False
        self.stop_reason: str | None = None
        self.restart_from: str | None = None
        self.opened = OpenRun(trainer.args.output_dir, config, self, rank=trainer.args.process_index)
        self.interrupts = Interrupts(_signals_left_to_us(trainer.args))
        self.interrupted_by: signal.Signals | None = None
        self._changes = Wrapping()
        self._started_s = time.time()
        self._last_metrics: dict[str, float] = {}
        self._step_began = time.perf_counter()
        self._step_time_s = 0.0
        self._attached = False

    # -- life ----------------------------------------------------------------------------------------

    def attach(self) -> None:
        """Put the guard into the trainer."""
        self.guard.attach()
        if self.mode is Mode.HEAL:
            self.interrupts.install()
        self._attached = True

    def detach(self) -> None:
        """Take it out again and put the trainer's settings back."""
        self.interrupts.restore()
        if self._attached:
            self.guard.detach()
            self._changes.restore()
            self._attached = False

    def close(self) -> None:
        """End the session: the trainer is as it was, the ledger is written, the directory free."""
        self.detach()
        self.opened.close()

    # -- signals -------------------------------------------------------------------------------------

    def begin_training(self) -> None:
        """Note how steps can be skipped and what is known of the run."""
        way = self.guard.attach_optimizer()
        args, state = self.trainer.args, self.trainer.state
        facts: dict[str, Fact] = {
            "trainer": type(self.trainer).__name__,
            "max_steps": int(state.max_steps),
            "warmup_steps": int(args.get_warmup_steps(state.max_steps)),
            "max_grad_norm": float(args.max_grad_norm),
            "precision": "fp16" if args.fp16 else "bf16" if args.bf16 else "fp32",
            "weight_decay": float(args.weight_decay),
            "skips_by": way,
        }
        vocabulary = getattr(getattr(self.trainer.model, "config", None), "vocab_size", None)
        if isinstance(vocabulary, int):
            facts["vocab_size"] = vocabulary
        self._step_began = time.perf_counter()
        self.signal(Facts(step=int(state.global_step), time_s=time.time(), facts=facts))

    def end_of_step(self) -> None:
        """Read what the device said, make up what it skipped, and let the healer look at it."""
        now = time.perf_counter()
        self._step_time_s, self._step_began = now - self._step_began, now
        control = self.trainer.control
        must_know = control.should_log or control.should_save or control.should_evaluate or control.should_training_stop
        readings = list(self.guard.readings(wait=must_know))
        if any(not reading.is_applied for reading in readings) and self.mode is Mode.HEAL:
            self._make_up()
        self._answer_interrupt()
        for reading in readings:
            values = {
                "loss": reading.loss,
                "grad_norm": reading.norm,
                "learning_rate": reading.rate,
                "step_time_s": self._step_time_s,
            }
            self._last_metrics = values
            self.signal(Metrics(step=reading.step, time_s=time.time(), values=values))

    def _make_up(self) -> None:
        self._found_unsound = False
        applied = self.guard.make_up()
        if applied and not self._found_unsound:
            text = "it was finite when the same step was run again, with the same data and the same random numbers"
            self._learn({"nan_kind": "transient", "nan_because": text})

    def _examine(self, window: Window) -> None:
        """Find out why a step is not finite even when it is run again."""
        self._found_unsound = True
        found = self._examiner.examine(window, self.guard.original_training_step)
        if found:
            self.note("nan-examined", str(found["nan_because"]))
            self._learn(found)

    def _learn(self, facts: dict[str, Fact]) -> None:
        self.signal(Facts(step=self._step(), time_s=time.time(), facts=facts))

    def _answer_interrupt(self) -> None:
        """Save the run where a signal has asked it to end, and end it, unless the signal was only a warning."""
        number = self.interrupts.take()
        if number is None:
            return
        self.note("interrupted", f"{number.name} came; {self.emergency_checkpoint()}")
        if number in WARNINGS:
            self.interrupts.pass_on(number)
            return
        self.interrupted_by = number
        self.trainer.control.should_training_stop = True

    def emergency_checkpoint(self) -> str:
        """Write a checkpoint of the last complete step if its weights are finite; say in a sentence what came of it."""
        step = self._step()
        if step == 0:
            return "no step is complete yet, nothing to save"
        if not self.weights_are_finite():
            return "the weights are not finite, no checkpoint was written"
        folder, _ = newest_usable(self.trainer.args.output_dir, None)
        if folder is not None and folder.step == step:
            return f"{folder.path.name} was there already"
        try:
            self.trainer._save_checkpoint(self.trainer.model, None)  # noqa: SLF001  # what the loop itself calls
        except Exception as error:  # noqa: BLE001  # the fence: said in the ledger; what started this matters more
            return f"the emergency checkpoint failed: {type(error).__name__}: {error}"
        self.saved()
        return f"checkpoint-{step} was written"

    def weights_are_finite(self) -> bool:
        """Look at every parameter; waits for the device."""
        import torch

        return all(bool(torch.isfinite(p).all()) for p in self.trainer.model.parameters())

    def note(self, name: str, text: str) -> None:
        """Write a remark into the ledger and the log."""
        logger.warning("%s", text)
        ledger = self.opened.ledger
        if ledger is not None:
            ledger.append("note", name, step=self._step(), time_s=time.time(), body={"text": text})

    def ended(self, exit_reason: str, error: BaseException | None) -> None:
        """Write how the run ended: a line in the ledger, the postmortem, and one sentence in the log."""
        ledger, args = self.opened.ledger, self.trainer.args
        if ledger is None or args.process_index != 0:
            return
        told = {"exit_reason": exit_reason, "exception": type(error).__name__ if error is not None else None}
        ledger.append("note", "run-ended", step=self._step(), time_s=time.time(), body=told)
        ledger.flush()
        reading = LedgerReading()
        skipped = {"healing/skipped_steps": self.guard.skipped_steps} if self.guard.skipped_steps else {}
        postmortem = build_postmortem(
            iter_ledger(ledger.path, reading),
            exit_reason=exit_reason,
            exception=error,
            last_step=self._step(),
            final_metrics={**self._last_metrics, **skipped},
            started_s=self._started_s,
            ended_s=time.time(),
            versions=versions(),
            hardware=hardware(),
            reading=reading,
        )
        path = postmortem_path(args.output_dir)
        if write_json_atomically(path, postmortem.to_json()):
            logger.info("%s at step %d; the postmortem is %s", exit_reason, self._step(), path)

    def evaluated(self, metrics: dict[str, Any] | None) -> None:
        """Report an evaluation."""
        values = {k: float(v) for k, v in (metrics or {}).items() if isinstance(v, int | float)}
        if values:
            self.signal(Metrics(step=self._step(), time_s=time.time(), values=values))

    def saved(self) -> None:
        """Report a checkpoint: a state that can be returned to."""
        folder, _ = newest_usable(self.trainer.args.output_dir, None)
        if folder is not None and folder.step == self._step():
            self.signal(SnapshotTaken(step=folder.step, time_s=time.time(), key=str(folder.path)))

    def raised(self, error: BaseException) -> Plan | None:
        """Report an exception that left the loop and carry out what can be done inside the process."""
        described = describe(error)
        return self.signal(
            Raised(step=self._step(), time_s=time.time(), rank=self.trainer.args.process_index, **described)
        )

    def signal(self, seen: Signal) -> Plan | None:
        """Let the healer decide and do; return the last plan it made."""
        healer = self.opened.healer
        plan = healer.agree(healer.observe(seen))
        last = plan
        while plan is not None:
            last = plan
            outcome = healer.act(plan, self, time.perf_counter)
            plan = None if outcome is None else healer.agree(healer.next_plan(outcome))
        return last

    def _step(self) -> int:
        return int(self.trainer.state.global_step)

    # -- what this run can do ------------------------------------------------------------------------

    def scale_learning_rate(self, factor: float, *, floor: float | None) -> float:
        """Multiply the learning rate for good."""
        return self.guard.rate_scale.scale(factor, rate=self._rate(), floor=floor)

    def rewarm_learning_rate(self, factor: float, *, ramp_steps: int, floor: float | None) -> float:
        """Cut the learning rate and ramp it back."""
        return self.guard.rate_scale.rewarm(factor, ramp_steps, rate=self._rate(), floor=floor)

    def tighten_clipping(self, *, factor: float, initial: float) -> float:
        """Lower the limit of the gradient norm until the end of training, or set one where there was none."""
        args = self.trainer.args
        limit = args.max_grad_norm * factor if args.max_grad_norm else initial
        self._changes.replace(args, "max_grad_norm", limit)
        return float(limit)

    def clear_cache(self) -> str:
        """Release cached device memory."""
        import gc

        import torch

        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return "cached device memory released"

    def save_checkpoint(self) -> str:
        """Ask the trainer for a checkpoint at the end of this step."""
        self.trainer.control.should_save = True
        return f"a checkpoint of step {self._step()} is written"

    def roll_back(self, *, before_step: int | None, depth: int, min_steps: int | None) -> Restored:
        """Return to the newest usable checkpoint by leaving the loop and resuming from it."""
        latest = before_step
        if min_steps is not None:
            latest = min(self._step() - min_steps + 1, latest if latest is not None else self._step())
        folder, passed_over = newest_usable(self.trainer.args.output_dir, latest)
        for _ in range(depth):
            older = newest_usable(self.trainer.args.output_dir, folder.step)[0] if folder is not None else None
            folder = older or folder
        if folder is None:
            told = "; ".join(passed_over) or "none was written yet"
            raise ActionFailed(f"no usable checkpoint from before step {latest}: {told}")
        self.restart_from = str(folder.path)
        return Restored(str(folder.path), folder.step)

    def alert(self, text: str) -> str:
        """Tell a person, through the log."""
        logger.warning("%s", text)
        return "logged"

    def stop_run(self, reason: str) -> str:
        """End training at this step."""
        self.stop_reason = reason
        self.trainer.control.should_training_stop = True
        return "training ends at this step"

    def _rate(self) -> float:
        groups = self.trainer.optimizer.param_groups
        return float(groups[0]["lr"]) if groups else 0.0


def _signals_left_to_us(args: Any) -> list[signal.Signals]:
    """Return the signals we may take: transformers' own just-in-time checkpoint wins where it is switched on."""
    taken = {signal.SIGTERM} if getattr(args, "enable_jit_checkpoint", False) else set()
    return [number for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT) if number not in taken]


def _clips_always(config: HealingConfig) -> bool:
    return bool(config.zclip_enabled) and config.resolved()["zclip_mode"] == "always"
