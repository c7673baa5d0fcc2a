"""What a launcher or a shell prints about a process that ended. Usually an echo: the cause is in that process's own output."""

from __future__ import annotations

from ..actions.restart_process import RestartProcess
from ..actions.save_checkpoint import SaveCheckpoint
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

START_AGAIN = (rung(RestartProcess(), success=0.3), rung(StopRun()))
SAVE_AND_START_AGAIN = (rung(SaveCheckpoint(), RestartProcess(), success=0.95), rung(StopRun()))
GIVE_UP = (rung(StopRun()),)
ITS_OWN_OUTPUT = (
    "The cause is not in this text: read the output of the process that failed first, above it or in its own log."
)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="memory-corrupted",
        says="Native code crashed after it had damaged its own memory.",
        failure=FailureType.CRASH,
        fine="segfault",
        text=(
            r"double free or corruption|free\(\): (?:invalid|double)|malloc\(\): |malloc_consolidate\(\): |corrupted (?:size|double-linked)"
            r"|munmap_chunk\(\): invalid pointer|stack smashing detected|0xC0000005|-1073741819|access violation"
            r"|Signals\.SIGSEGV|(?:signal |\(|\*{3} |: )SIGSEGV\b|SIGSEGV (?:received|\()|realloc\(\): invalid|exitcode -11\b|Segfault encountered|segfault at [0-9a-f]|terminated with signal SIGSEGV|Fatal Python error: Segm"
        ),
        weight=0.86,
        remedy=START_AGAIN,
        fixes=(
            "Run with PYTHONFAULTHANDLER=1 to see where; two libraries built against different versions are usual.",
            "Leave out compiled extensions one by one, and set num_workers to 0.",
        ),
        matches=(
            "double free or corruption (!prev)\nAborted (core dumped)",
            "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGSEGV: 11>.",
            "Process finished with exit code -1073741819 (0xC0000005)",
        ),
        but_not=(
            "INFO: malloc trim done",
            "signal 15",
            "Some common causes include: (1) the OOM killer, (2) ray stop, or (3) the worker crashed unexpectedly due to SIGSEGV.",
        ),
        source="glibc malloc/malloc.c; Windows STATUS_ACCESS_VIOLATION",
    ),
    Pattern(
        name="killed-by-shell-report",
        says="A process was killed, most likely by the kernel because the machine's memory ran out.",
        failure=FailureType.OOM,
        fine="oom_host",
        text=(
            r"(?m:^\s{0,8}Killed\s{0,8}$)|line \d+:\s{1,8}\d+ Killed|Signals\.SIGKILL|terminated with signal SIGKILL|exitcode -9\b"
            r"|task \d+: Killed"
            r"|(?:exit status|exited with code|error code:?|return code) 137\b"
            r"|terminated with exit code 137|exit_code=137"
        ),
        weight=0.62,
        is_echo=True,
        confirm="dmesg on that machine says 'Out of memory: Killed process'; sacct -j shows MaxRSS at the limit.",
        remedy=START_AGAIN,
        fixes=(
            "Read dmesg on that machine: 'Out of memory: Killed process' settles it; sacct -j shows MaxRSS and State under Slurm.",
            "Lower dataset_num_proc and the number of data workers, or ask the scheduler for more memory.",
        ),
        matches=(
            "train.sh: line 14: 20931 Killed                  python train.py --config base.yaml",
            "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
            "srun: error: node07: task 3: Killed",
        ),
        but_not=("INFO: Killing subprocess 4711", "KeyError: 'Killed'"),
        source="bash(1), subprocess, Slurm",
    ),
    Pattern(
        name="killed-worker-of-a-pool",
        says="A worker of a pool of processes was killed, most likely because the machine's memory ran out.",
        failure=FailureType.OOM,
        fine="oom_host",
        text=(
            r"subprocesses has abruptly died during map operation|process pool was terminated abruptly"
            r"|managed by the executor was unexpectedly terminated"
        ),
        weight=0.89,
        remedy=START_AGAIN,
        fixes=(
            "Use fewer processes (num_proc, n_jobs): each holds its own copy; one process shows a crash of the code itself.",
        ),
        matches=(
            "RuntimeError: One of the subprocesses has abruptly died during map operation.To debug the error, disable multiprocessing.",
            (
                "TerminatedWorkerError: A worker process managed by the executor was unexpectedly terminated. This could be caused "
                "by a segmentation fault while calling the function or by an excessive memory usage"
            ),
        ),
        but_not=("INFO: the process pool was closed",),
        source="datasets/utils/py_utils.py, concurrent.futures, joblib",
    ),
    Pattern(
        name="terminated-from-outside",
        says="A process was asked to end, by the scheduler, the cloud, a closed terminal, or a launcher that had lost another one.",
        failure=FailureType.PREEMPTED,
        fine="preempted",
        text=(
            r"signal 15 \(SIGTERM\)|exit ?code\s{0,4}: -15\b|exit code 143\b|Signals\.SIGTERM|exitcode -15\b"
            r"|signal 1 \(SIGHUP\)|exit ?code\s{0,4}: -1\b|exit code 129\b|closing signal SIGHUP"
            r"|task \d+: Terminated|return code = -15\b"
            r"|(?m:^Terminated\s{0,4}$)|signal 10 \(SIGUSR1\)"
        ),
        weight=0.55,
        is_echo=True,
        confirm="sacct -j or the cloud's event log names the end; if not, another process failed first.",
        remedy=SAVE_AND_START_AGAIN,
        fixes=(
            "Ask the scheduler why (sacct -j, or the cloud's event log); a launcher sends SIGTERM to all when one process fails.",
            "Ask for a warning before the end (--signal=TERM@120) and for a requeue (--requeue).",
        ),
        matches=("  exitcode  : -15 (pid: 4117)\n  traceback : Signal 15 (SIGTERM) received by PID 4117",),
        but_not=("WARNING:torch.distributed.elastic.multiprocessing.api:Sending process 88 closing signal SIGTERM",),
        source="POSIX signals; Slurm; torch/distributed/elastic; Lightning signal_connector.py",
    ),
    Pattern(
        name="machine-taken-away",
        says="The cloud or the cluster took the machine away.",
        failure=FailureType.PREEMPTED,
        fine="preempted",
        text=(
            r"Preempted by scheduler|DisruptionTarget|(?:Pod|pod|container) (?:was|has been|is being) (?:evicted|preempted)"
            r"|[Ss]pot (?:instance|VM)[^\n]{0,60}(?:terminat|interrupt|reclaim|preempt)|preemptible[^\n]{0,60}(?:terminat|preempt)"
            r"|job was preempted|CANCELLED DUE TO PREEMPTION|Node fail(?:ure|ed)|launch failed requeued|DUE TO NODE|TIMEOUT_PREEMPT"
            r"|worker is going to be (?:preempted|terminated)|Instance terminated by|time limit (?:has been )?(?:exceeded|reached)"
        ),
        weight=0.88,
        remedy=SAVE_AND_START_AGAIN,
        fixes=("Save more often than the warning time of the provider, and start again from the newest checkpoint.",),
        matches=(
            "Warning  Preempted by scheduler: pod train-0 on node gke-7",
            "The spot instance i-0ab will be terminated at 2026-01-02T03:04:05Z",
        ),
        but_not=("INFO: spot checks of the data passed",),
        source="Kubernetes, AWS, Google Cloud and Slurm documentation",
    ),
    Pattern(
        name="interrupted-at-keyboard",
        says="Somebody pressed Ctrl-C.",
        failure=FailureType.OTHER,
        fine="user_interrupt",
        text=(
            r"(?m:^[^\n:']{0,60}\bKeyboardInterrupt:?\s{0,4}$)|(?m:^\S{1,40}:\s?KeyboardInterrupt\s{0,4}$)|signal 2: SIGINT"
            r"|signal 2 \(SIGINT\)|exit code 130\b|exit ?code\s{0,4}: -2\b|Detected KeyboardInterrupt|Received signal: SIGINT"
            r"|Keyboard ?interrupt (?:received|detected|caught)|return code = -2\b|(?m:^\^C)|due to (?:a )?KeyboardInterrupt|interrupted by (?:the )?user\b"
        ),
        weight=0.7,
        remedy=GIVE_UP,
        fixes=("If it was pressed because nothing moved, look for a hang before that.",),
        matches=(
            "[rank0]: KeyboardInterrupt",
            "Process finished with exit code 130 (interrupted by signal 2: SIGINT)",
            "Detected KeyboardInterrupt, attempting graceful shutdown ...",
            "Exiting due to KeyboardInterrupt (signal 2)",
        ),
        but_not=("INFO: press Ctrl-C to raise KeyboardInterrupt in the worker",),
        source="CPython, POSIX: 128 + 2, Lightning",
    ),
    Pattern(
        name="process-failed",
        says="A process failed; its own output, not this text, says why.",
        failure=FailureType.CRASH,
        fine="unknown_child_failure",
        text=(
            r"process \d+ terminated with exit code [1-9]|terminated with signal SIGABRT|(?:exits with )?return code = [1-9]"
            r"|task \d+: (?:Exited with exit code [1-9]|Aborted)|returned (?:a )?non-zero exit (?:status|code)[: ]{0,2}[1-9]"
            r"|exited (?:with non-zero status|on signal)|Primary job\s{1,4}terminated normally|exit ?code\s{0,4}: (?:-6\b|[2-9]\b)"
            r"|signal 6 \(SIGABRT\)|Signals\.SIGABRT|WorkerCrashedError|ActorDiedError|RayActorError|actor died unexpectedly"
            r"|worker died or was killed while executing|exited with code [1-9]\b|exit code 134\b|ProcessRaisedException"
            r"|Root Cause \(first observed failure\)|finished with exit code 1\b|Fatal Python error: Aborted|local_rank: \d+ \(pid: \d+\) of binary"
        ),
        weight=0.5,
        is_echo=True,
        remedy=START_AGAIN,
        fixes=(
            ITS_OWN_OUTPUT,
            "torchrun: --log-dir logs --tee 3 keeps each rank's output; Ray: ray logs; Slurm: --output with %t.",
        ),
        matches=(
            "torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with exit code 1",
            "[INFO] [launch.py:428:main] Process 812 exits with return code = 1",
            "srun: error: node03: task 5: Exited with exit code 1",
            "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.",
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker exit type: SYSTEM_ERROR",
        ),
        but_not=("Process finished with exit code 0", "subprocess.CalledProcessError: something else"),
        source="torch/multiprocessing/spawn.py, deepspeed/launcher/launch.py, Slurm, Open MPI, Ray",
    ),
    Pattern(
        name="stalled",
        says="Some processes wait for others that do not come.",
        failure=FailureType.HANG,
        fine="hang",
        text=(
            r"Stalled ops:|tensors were submitted to be reduced, gathered or broadcasted by subset of ranks|\bhang detected\b"
            r"|blocked for more than \d+ seconds|no progress (?:for|in) \d+|deadlock detected|possible deadlock"
            r"|This strategy's barrier|Detected (?:a )?(?:hang|stall|deadlock)"
        ),
        weight=0.74,
        is_echo=True,
        remedy=START_AGAIN,
        fixes=(
            "See where each process stands: py-spy dump --pid PID, or TORCH_NCCL_TRACE_BUFFER_SIZE=2000 with a timeout.",
            "A branch that only some ranks take (saving, logging, an uneven last batch) and that holds a collective is usual.",
        ),
        matches=(
            (
                "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for "
                "remainder of ranks for more than 60 seconds."
            ),
            "INFO: task python:4242 blocked for more than 120 seconds.",
        ),
        but_not=("INFO: progress 10 of 20",),
        source="Horovod, common/stall_inspector.cc; Linux kernel/hung_task.c",
    ),
)
