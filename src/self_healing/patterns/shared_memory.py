"""Shared memory, through which data workers and NCCL exchange tensors, is full.

It hides well: "no space left on device" sounds like a disk, and a bus error like broken hardware.
"""

from __future__ import annotations

from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

START_AGAIN = (rung(RestartProcess(), success=0.3), rung(StopRun()))
FIXES = (
    "Give the container more shared memory: docker run --shm-size=16g or --ipc=host.",
    "Lower the number of data workers, or set num_workers to 0 to see whether it goes away.",
)
RIVALS = (
    ("bus-error-of-host-memory", "bus-error"),
    ("bus-error-of-deepspeed", "bus-error"),
    ("bus-error-of-deepspeed", "bus-error-of-host-memory"),
)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="shared-memory-full",
        says="The shared memory of data workers or of NCCL is full.",
        failure=FailureType.OOM,
        fine="oom_shm",
        text=(
            r"killed by signal: Bus error|insufficient shared memory|Unexpected bus error|out of shared memory|unable to (?:open|allocate|mmap|resize) shared memory"
            r"|unable to write to file </torch_|shared memory segment /dev/shm|\bObjectStoreFullError\b"
            r"|object store (?:memory )?is full|posix_fallocate failed|failed to extend /dev/shm|Fatal Python error: Bus error|joblib will operate in serial mode"
            r"|(?:SemLock|ctx\.\w*Lock\(|multiprocessing.(?:heap|synchronize|reduction)|torch.storage\.py|_new_shared|_share_filename)"
            r"[\s\S]{0,300}(?:No space left on device|Errno 28)|unable to mmap \d+ bytes from file </torch|Bus error \(core dumped\)"
            r"|(?:No space left on device|Errno 28).{0,200}/dev/shm|/dev/shm.{0,200}No space left on device"
        ),
        weight=0.94,
        remedy=START_AGAIN,
        fixes=FIXES,
        matches=(
            (
                "RuntimeError: DataLoader worker (pid 3002) is killed by signal: Bus error. It is possible that dataloader's "
                "workers are out of shared memory. Please try to raise your shared memory limit."
            ),
            "RuntimeError: unable to open shared memory object </torch_42_17> in read-write mode: No space left on device (28)",
            "ray.exceptions.RaySystemError: the object store is full: cannot create object 00ffff",
            "OSError in multiprocessing/synchronize.py line 57: SemLock\nOSError: [Errno 28] No space left on device",
            "train.sh: line 3: 811 Bus error (core dumped) python train.py",
            "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-Xy12 (size 9637888)",
        ),
        but_not=(
            "OSError: [Errno 28] No space left on device: '/checkpoints/step-100/model.safetensors'",
            "RuntimeError: DataLoader worker (pid 4321) is killed by signal: Killed.",
        ),
        source="https://github.com/pytorch/pytorch/issues/5247",
    ),
    Pattern(
        name="bus-error",
        says="A process died of a bus error, most likely because shared memory is full.",
        failure=FailureType.OOM,
        fine="oom_shm",
        text=r"exit ?code\s*: -7\b|return code = -7\b|signal 7 \(SIGBUS\)|\bSIGBUS received|Signals\.SIGBUS|exit code 135\b|exitcode -7\b",
        weight=0.6,
        confirm="df -h /dev/shm while it runs: it fills up.",
        remedy=START_AGAIN,
        fixes=(*FIXES, "df -h /dev/shm while it runs tells a full /dev/shm from the other readings."),
        matches=("  exitcode  : -7 (pid: 16609)\n  traceback : Signal 7 (SIGBUS) received by PID 16609",),
        but_not=("  exitcode  : -70 (pid: 16609)",),
        source="https://github.com/deepspeedai/DeepSpeed/issues/4581",
    ),
    Pattern(
        name="bus-error-of-host-memory",
        says="A process died of a bus error, which mapped files also cause when the machine's memory is short.",
        failure=FailureType.OOM,
        fine="oom_host",
        text=r"exit ?code\s*: -7\b|return code = -7\b|signal 7 \(SIGBUS\)|\bSIGBUS received|Signals\.SIGBUS|exit code 135\b|exitcode -7\b",
        weight=0.4,
        confirm="dmesg on that machine names a process that was killed for memory.",
        remedy=START_AGAIN,
        fixes=("Watch free memory on that machine while the model loads.",),
        matches=("*** SIGBUS received at time=1749878572 on cpu 166 ***",),
        but_not=("signal 17",),
        source="signal(7)",
    ),
    Pattern(
        name="bus-error-of-deepspeed",
        says="DeepSpeed's launcher ended with -7, which some of its versions do by themselves.",
        failure=FailureType.CONFIG_ERROR,
        fine="version_mismatch",
        text=r"exit ?code\s*: -7\b|return code = -7\b",
        weight=0.25,
        confirm="A newer DeepSpeed runs without it, and /dev/shm stays empty.",
        remedy=START_AGAIN,
        fixes=("Upgrade DeepSpeed: pip install -U deepspeed.",),
        matches=("exits with return code = -7",),
        but_not=("exits with return code = -11",),
        source="https://docs.axolotl.ai/docs/training_stability.html",
    ),
)
