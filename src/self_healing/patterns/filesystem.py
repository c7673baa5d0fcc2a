"""The disk is full, or may not be written to."""

from __future__ import annotations

from ..actions.retry_later import RetryLater
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="disk-full",
        says="There is no space left on the disk, or the quota is used up.",
        failure=FailureType.DISK,
        fine="disk_full",
        text=(
            r"No space left on device|Disk quota exceeded|PytorchStreamWriter failed writing file"
            r"|\bErrno 28\b|\bENOSPC\b|os error 28\b|errno = 28\b|StorageFull|\bEDQUOT\b|\d+ requested and \d+ written|os error 122\b|\bErrno 122\b|QuotaExceeded|WinError 112"
            r"|Not enough (?:free )?disk space|has been used up[^\n]{0,40}quota|disk is full|file write failed"
            r"|database or disk is full|low on resource: (?:ephemeral-storage|inodes)|local storage usage exceeds|not enough space on the disk|inline_container\.cc:\d+\] \. unexpected pos \d+ vs \d+"
        ),
        weight=0.93,
        remedy=(rung(RetryLater(), success=0.3, repeats=3), rung(StopRun())),
        fixes=(
            "Delete old checkpoints, or keep fewer with save_total_limit.",
            "If the disk has room, look at /dev/shm and at the inodes: df -h /dev/shm, df -i.",
        ),
        matches=(
            "OSError: [Errno 28] No space left on device",
            "OSError: [Errno 122] Disk quota exceeded",
            "Evicted: The node was low on resource: ephemeral-storage. Container train was using 310Gi",
            "safetensors_rust.SafetensorError: Error while serializing: I/O error: No space left on device (os error 28)",
            "UserWarning: Not enough free disk space to download the file. The expected file size is: 9976.58 MB.",
            (
                "RuntimeError: [enforce fail at inline_container.cc:445] . PytorchStreamWriter failed writing file data/176: file "
                "write failed"
            ),
            "RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0",
        ),
        but_not=("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",),
        source="errno(3), PyTorch caffe2/serialize/inline_container.cc",
    ),
    Pattern(
        name="permission-denied",
        says="The run may not read or write a file it needs.",
        failure=FailureType.DISK,
        fine="permission_error",
        text=(
            r"\[Errno 13\] Permission denied|\[Errno 30\] Read-only file system|os error 13\b|PermissionError: |PermissionDeniedError|\bEACCES\b|\bEPERM\b"
            r"|WinError (?:5|32)\]|\[Errno 1\] Operation not permitted|: Permission denied(?:\s{0,4}$|\s{0,4}\n)|: Read-only file system|os error 30\b"
        ),
        weight=0.9,
        remedy=(rung(StopRun()),),
        fixes=("Check who owns the folder; point HF_HOME and output_dir to one that is yours.",),
        matches=(
            "PermissionError: [Errno 13] Permission denied: '/data/.cache/huggingface/hub'",
            "OSError: [Errno 30] Read-only file system: '/output'",
            "bash: ./scripts/train.sh: Permission denied",
            "OSError: [WinError 5] Access is denied: 'C:\\Users\\u\\.cache\\huggingface'",
        ),
        but_not=(
            "huggingface_hub.errors.HfHubHTTPError: 403 Client Error: Forbidden for url: https://huggingface.co/api",
        ),
        source="errno(3)",
    ),
)
