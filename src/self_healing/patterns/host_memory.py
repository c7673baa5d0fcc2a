"""The machine, not the GPU, has no memory left; or somebody killed the process, which looks the same from inside."""

from __future__ import annotations

from ..actions.restart_process import RestartProcess
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

START_AGAIN = (rung(RestartProcess(), success=0.5), rung(StopRun()))
FIXES = (
    "Lower dataset_num_proc and the number of data workers: each holds its own copy of what it touches.",
    "Use a smaller or a streamed data set.",
    "Ask the scheduler for more memory per task.",
)
RIVALS = (("killed-by-somebody", "killed-for-memory"),)

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="host-out-of-memory",
        says="The machine's own memory is exhausted.",
        failure=FailureType.OOM,
        fine="oom_host",
        text=(
            r"DefaultCPUAllocator: (?:can't allocate|not enough) memory|Unable to allocate [\d.]+ [KMGTP]iB"
            r"|Cannot allocate memory|std::bad_alloc|\boom[-_]kill|Out of memory: Kill(?:ed)? process|Memory cgroup out of memory"
            r"|\bOOMKilled\b|WinError 1455|paging file is too small|Exceeded (?:job|step) memory limit|\bOUT_OF_MEMORY\b"
            r"|node running low on memory|low on resource: memory\b|task \d+: Out Of Memory|hit memory(?:\+swap)? limit|exceeded (?:the )?(?:memory limit|virtual memory limit)|after using all available RAM"
            r"|tried to allocate more memory than is available|WinError 8\]"
            r"|(?m:^(?:\w+\.)*_?(?:Array)?MemoryError\b)"
        ),
        weight=0.92,
        remedy=START_AGAIN,
        fixes=FIXES,
        matches=(
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you "
                "tried to allocate 68719476736 bytes. Error code 12 (Cannot allocate memory)"
            ),
            "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 74.5 GiB for an array with shape (100000, 100000)",
            "slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM Killed.",
            "OSError: [WinError 1455] The paging file is too small for this operation to complete.",
            "Last State: Terminated, Reason: OOMKilled, Exit Code: 137",
            "Evicted: The node was low on resource: memory. Container train was using 61Gi, request is 0",
            "slurmstepd: error: Exceeded job memory limit at some point.",
            "srun: error: gn01: task 2: Out Of Memory",
            "slurmstepd: error: StepId=771.0 hit memory+swap limit at least once during execution.",
            "[12345.678] Out of memory: Killed process 4242 (python) total-vm:98765432kB, anon-rss:65432100kB",
        ),
        but_not=(
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "RuntimeError: unable to allocate shared memory(shm) for file </torch_17>: Resource temporarily unavailable (11)",
        ),
        source="PyTorch c10/core/CPUAllocator, Linux kernel mm/oom_kill.c",
    ),
    Pattern(
        name="memory-error-raised",
        says="Python could not get memory from the machine.",
        failure=FailureType.OOM,
        fine="oom_host",
        exception=("MemoryError",),
        weight=0.9,
        remedy=START_AGAIN,
        fixes=FIXES,
        matches=("MemoryError: ",),
        but_not=("torch.OutOfMemoryError: CUDA out of memory.", "RuntimeError: memory format option is not supported"),
        source="the builtin class",
    ),
    Pattern(
        name="killed-for-memory",
        says="A process was killed without a word, most likely by the kernel because memory ran out.",
        failure=FailureType.OOM,
        fine="oom_host",
        text=(
            r"exit ?code\s*: -9\b|exit code 137\b|return code = -9\b|signal 9 \(SIGKILL\)|signal 9: SIGKILL"
            r"|is killed by signal: Killed"
        ),
        weight=0.6,
        is_echo=True,
        confirm="dmesg on that machine says 'Out of memory: Killed process'; sacct -j shows MaxRSS at the limit.",
        remedy=START_AGAIN,
        fixes=(*FIXES, "Read dmesg on that machine: 'Out of memory: Killed process' settles it."),
        matches=(
            "  exitcode  : -9 (pid: 3309)\n  traceback : Signal 9 (SIGKILL) received by PID 3309",
            "RuntimeError: DataLoader worker (pid 4321) is killed by signal: Killed.",
            "[INFO] [launch.py:315:sigkill_handler] exits with return code = -9",
        ),
        but_not=("  exitcode  : 1 (pid: 3309)", "  exitcode  : -90 (pid: 1)"),
        source="https://docs.axolotl.ai/docs/training_stability.html",
    ),
    Pattern(
        name="killed-by-somebody",
        says="A process was killed without a word, by a person or a scheduler.",
        failure=FailureType.CRASH,
        fine="killed_unknown",
        text=r"exit ?code\s*: -9\b|exit code 137\b|return code = -9\b|signal 9 \(SIGKILL\)|signal 9: SIGKILL",
        weight=0.35,
        is_echo=True,
        confirm="dmesg says nothing about memory, and the log of the scheduler or another user's kill does.",
        remedy=START_AGAIN,
        fixes=("Ask the scheduler why the job ended, for example with sacct -j, and look for kill in its log.",),
        matches=("Process finished with exit code 137 (interrupted by signal 9: SIGKILL)",),
        but_not=("Process finished with exit code 13",),
        source="POSIX: 128 + 9",
    ),
)
