"""The run was ended from outside: by the scheduler, the cloud, or the person at the keyboard."""

from __future__ import annotations

from ..actions.restart_process import RestartProcess
from ..actions.save_checkpoint import SaveCheckpoint
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="preempted",
        says="The scheduler or the cloud took the machine away.",
        failure=FailureType.PREEMPTED,
        fine="preempted",
        text=(
            r"DUE TO (?:PREEMPTION|TIME LIMIT|JOB REQUEUE|NODE FAILURE)|this job is preempted"
            r"|(?:instance|node|VM) (?:will be|was|is being) preempted|\bstate:? PREEMPTED\b|[Ss]pot (?:instance )?interruption (?:notice|warning)"
        ),
        weight=0.9,
        remedy=(rung(SaveCheckpoint(), RestartProcess(), success=0.95), rung(StopRun())),
        fixes=(
            "Ask the scheduler for a warning before the end (--signal=TERM@120) and for a requeue (--requeue).",
            "Start with setsid, tmux or nohup if it was the terminal that closed.",
        ),
        matches=(
            "slurmstepd: error: *** JOB 608 ON node17 CANCELLED AT 2026-01-02T03:04:05 DUE TO PREEMPTION ***",
            "TPU node tpu-3 has state PREEMPTED",
        ),
        but_not=(
            "slurmstepd: error: *** JOB 608 ON node17 CANCELLED AT 2026-01-02T03:04:05 ***",
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 10401 closing signal SIGTERM",
        ),
        source="Slurm, cloud providers' notices",
    ),
    Pattern(
        name="launcher-told-to-stop",
        says="The launcher was told to stop, by the scheduler, the cloud or a terminal that closed.",
        failure=FailureType.PREEMPTED,
        fine="preempted",
        text=(
            r"multiprocessing\.api\.SignalException|got signal: (?:1|15)\b|Received (?:1|15) death signal"
            r"|Received Signals\.SIG(?:TERM|HUP) death signal|(?:JOB|STEP) [\d.]+ ON \S+ CANCELLED AT|Force Terminated job"
            r"|received signal:? (?:15|SIGTERM)|Received SIGTERM|SIGTERM received|caught signal SIGTERM|Got SIGTERM|Job step aborted: Waiting"
        ),
        weight=0.7,
        is_echo=True,
        remedy=(rung(SaveCheckpoint(), RestartProcess(), success=0.95), rung(StopRun())),
        fixes=(
            "Ask the scheduler for a warning before the end (--signal=TERM@120) and for a requeue (--requeue).",
            "Start with setsid, tmux or nohup if it was the terminal that closed.",
        ),
        matches=(
            "slurmstepd: error: *** STEP 901.0 ON gpu03 CANCELLED AT 2026-02-03T11:12:13 ***",
            "[rank: 0] Received SIGTERM: 15",
            "torch.distributed.elastic.multiprocessing.api.SignalException: Process 1203 got signal: 15",
            "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers",
        ),
        but_not=(
            "WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 10401 closing signal SIGTERM",
            "WARNING:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers",
        ),
        source="torch/distributed/elastic/multiprocessing/api.py, Slurm, Lightning signal_connector.py",
    ),
    Pattern(
        name="interrupted-by-user",
        says="Somebody pressed Ctrl-C.",
        failure=FailureType.OTHER,
        fine="user_interrupt",
        text=r"(?m:^KeyboardInterrupt$)|Received 2 death signal|got signal: 2\b|closing signal SIGINT",
        weight=0.74,
        remedy=(rung(StopRun()),),
        fixes=("If it was pressed because nothing moved, look for a hang before that.",),
        matches=(
            'Traceback (most recent call last):\n  File "train.py", line 9, in <module>\nKeyboardInterrupt',
            "WARNING:torch.distributed.elastic.agent.server.api:Received 2 death signal, shutting down workers",
        ),
        but_not=("caught KeyboardInterrupt handler installed", "got signal: 20"),
        source="CPython, torch/distributed/elastic/agent/server/api.py",
    ),
    Pattern(
        name="interrupt-raised",
        says="Somebody pressed Ctrl-C.",
        failure=FailureType.OTHER,
        fine="user_interrupt",
        exception=("KeyboardInterrupt",),
        weight=0.95,
        remedy=(rung(StopRun()),),
        fixes=("Nothing to fix.",),
        matches=("KeyboardInterrupt: ",),
        but_not=("RuntimeError: interrupted",),
        source="the builtin class",
    ),
)
