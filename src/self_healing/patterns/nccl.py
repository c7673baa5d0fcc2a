"""Ranks lost each other. The message is often an echo: the rank that failed first says something else."""

from __future__ import annotations

from ..actions.exclude_node import ExcludeNode
from ..actions.restart_process import RestartProcess
from ..actions.retry_later import RetryLater
from ..actions.stop_run import StopRun
from ..core.action import rung
from ..core.cause import Pattern
from ..core.failure import FailureType

START_AGAIN = (rung(RestartProcess(), success=0.5), rung(ExcludeNode(), success=0.8), rung(StopRun()))
FIRST_RANK = "Read the output of the rank that failed first: an OOM there looks like a network error here."

PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        name="collective-timeout",
        says="A collective operation did not end in time: a rank is missing, stuck, or in another collective.",
        failure=FailureType.HANG,
        fine="nccl_timeout",
        text=(
            r"Watchdog caught collective operation timeout|milliseconds before timing out"
            r"|Timed out waiting \d+ms for (?:recv|send) operation|got error: (?:Socket Timeout|Timeout waiting for key|wait timeout)"
            r"|wait timeout after \d+ms|Timed out after \d+ seconds waiting for clients|client socket has timed out after|store based barrier|DistStoreError"
            r"|NCCL operations have failed or timed out|Application timeout caused pair closure|(?:failed to pass|timed out in) monitoredBarrier"
            r"|[Hh]eartbeat ?[Mm]onitor[^\n]{0,40} (?:timed out|detected)|RendezvousTimeoutError|due to a collective timeout|Socket Timeout"
            r"|NCCL (?:watchdog )?(?:timeout|timed out)|collective (?:operation )?timeout|StoreTimeout|Timeout at NCCL work|HCCL\w* [^\n]{0,60}time ?out"
            r"|detected by watchdog at work|[Bb]arrier timed out|RendezvousConnectionError|\bheartbeat timeout\b|watchdog got stuck for \d+|set to ERROR in coordination service"
        ),
        weight=0.76,
        is_echo=True,
        remedy=START_AGAIN,
        fixes=(
            FIRST_RANK,
            "With FSDP, set async_prefetch: false. Set TORCH_NCCL_TRACE_BUFFER_SIZE to record which rank came late.",
        ),
        matches=(
            (
                "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
                "WorkNCCL(SeqNum=15, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600060 milliseconds before timing out."
            ),
            (
                "torch.distributed.DistBackendError: [2] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d "
                "key-value store by key '0', but store->get('0') got error: Socket Timeout"
            ),
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 3/4 clients joined.",
            "RuntimeError: Rank 1 timed out in monitoredBarrier after 1800000 ms.",
            "[PG 0 Rank 2] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress in monitoring collectives",
            "E coordination_service.cc:1170] /job:jax_worker/replica:0/task:3 has been set to ERROR in coordination service: UNAVAILABLE",
        ),
        but_not=(
            "requests.exceptions.ReadTimeout: HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.",
        ),
        source="PyTorch, ProcessGroupNCCL.cpp; OpenXLA, coordination_service.cc",
    ),
    Pattern(
        name="nccl-failed",
        says="NCCL could not communicate.",
        failure=FailureType.CRASH,
        fine="nccl_error",
        text=(
            r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError"
            r"|NCCL communicator was aborted|NCCL error in:|DistBackendError: NCCL|ncclInvalidUsage|ncclInvalidArgument|NCCL Error \d"
            r"|unhandled (?:cuda|system) error|Duplicate GPU detected|NCCL WARN (?:Net|NET|Call|Connect|Bootstrap|socket|Could not|Failed|Cuda)"
            r"|NCCL WARN [^\n]{0,80}(?:failed|error|refused)|ncclCommInit\w* failed|\b(?:HCCL|RCCL) (?:error|function error)|NCCL failure"
            r"|ncclUniqueId|socket(?:PollConnect|StartConnect|Progress)|NET/IB : Got completion|Detected mismatch between collectives|NCCL watchdog thread terminated"
        ),
        weight=0.72,
        is_echo=True,
        remedy=START_AGAIN,
        fixes=(FIRST_RANK, "Set NCCL_DEBUG=INFO and read which call failed; check interfaces with NCCL_SOCKET_IFNAME."),
        matches=(
            "RuntimeError: NCCL communicator was aborted on rank 1.",
            "RuntimeError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:219, invalid usage, NCCL version 2.14.3",
            "node1:422:611 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.1.0.2<41225> failed",
            "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1d000",
            (
                "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, unhandled system error\n"
                "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."
            ),
        ),
        but_not=("NCCL INFO Launch mode Parallel",),
        source="https://docs.axolotl.ai/docs/training_stability.html",
    ),
    Pattern(
        name="peer-lost",
        says="Another rank closed the connection, most likely because it died.",
        failure=FailureType.CRASH,
        fine="nccl_error",
        text=(
            r"gloo.{0,120}Connection (?:closed|reset) by peer|Connection closed by peer \["
            r"|(?:recvValue|sendBytes|recvBytes) failed|connectFullMesh failed|gloo[^\n]{0,200}(?:Connection refused|SO_ERROR|Broken pipe)"
            r"|DistNetworkError|successfully reached monitoredBarrier, but received errors|TCPStore[^\n]{0,120}(?:Broken pipe|refused|reset)"
            r"|failed to connect to (?:\w+:)?\S+:\d+[^\n]{0,60}(?:retry|rank|c10d)|c10d[^\n]{0,120}(?:refused|reset|Broken pipe)"
            r"|Connection reset by peer[^\n]{0,60}(?:rank|c10d|Exception raised from (?:recv|send)Bytes)|remote process (?:has )?exited"
        ),
        weight=0.64,
        is_echo=True,
        remedy=START_AGAIN,
        fixes=(FIRST_RANK,),
        matches=(
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:34567",
            "torch.distributed.DistNetworkError: recvValue failed on SocketImpl(fd=4)",
        ),
        but_not=(
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "[W socket.cpp:663] [c10d] The client socket has failed to connect to [localhost]:29500 (errno: 99 - Cannot assign).",
        ),
        source="PyTorch, third_party/gloo and TCPStore",
    ),
    Pattern(
        name="child-failed",
        says="A worker process failed; its own output, not this text, says why.",
        failure=FailureType.CRASH,
        fine="unknown_child_failure",
        text=r"ChildFailedError|error_file: <N/A>|failed \(exitcode: 1\)|exitcode\s*: 1 \(pid",
        weight=0.5,
        is_echo=True,
        remedy=(rung(RestartProcess(), success=0.3), rung(StopRun())),
        fixes=(
            FIRST_RANK,
            "Decorate main with torch.distributed.elastic.multiprocessing.errors.record to get its traceback.",
        ),
        matches=(
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \ntrain.py FAILED\n  exitcode  : 1 (pid: 78)",
        ),
        but_not=("subprocess.CalledProcessError: Command 'ls' returned non-zero exit status 1.",),
        source="torch/distributed/elastic/multiprocessing/errors",
    ),
    Pattern(
        name="port-in-use",
        says="The port on which ranks meet is taken.",
        failure=FailureType.CONFIG_ERROR,
        fine="port_in_use",
        text=(
            r"\bEADDRINUSE\b|Address already in use|\[Errno 98\]|WinError 10048|port \d+ is (?:already )?(?:in use|occupied)"
            r"|[Tt]ried to launch distributed communication on port"
        ),
        weight=0.9,
        remedy=(rung(RetryLater(), success=0.5, repeats=3), rung(StopRun())),
        fixes=("End the other run, or choose another --master_port; 0 with --rdzv-backend c10d picks a free one.",),
        matches=(
            (
                "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: "
                "29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
            ),
            "ConnectionError: Tried to launch distributed communication on port `29500`, but another process is utilizing it.",
        ),
        but_not=("ConnectionRefusedError: [Errno 111] Connection refused",),
        source="PyTorch, torch/csrc/distributed/c10d/socket.cpp; accelerate, utils/launch.py",
    ),
)
