"""Two agents of torchrun on one machine stand for two nodes: the recipe of docs/ranks.md, and the script for Slurm."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.torch, pytest.mark.timeout(180)]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.soak
def test_a_rank_that_is_killed_on_one_node_has_both_nodes_go_on(tmp_path):
    options = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", "--rdzv-id", "two", "--rdzv-backend", "c10d",
               "--rdzv-endpoint", f"localhost:{free_port()}", "--local-addr", "localhost"]  # fmt: skip
    script = [str(EXAMPLES / "ddp.py"), "--fault", "kill", "--run-dir", str(tmp_path / "run")]
    environ = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    agents = [
        subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", *options, *script],
            env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    texts = [agent.communicate(timeout=150)[0] for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], "\n=====\n".join(text[-3000:] for text in texts)
    gone_on = [re.findall(r"goes on at shared-memory-step-(\d+), as all", text) for text in texts]
    assert [set(steps) for steps in gone_on] == [{"24"}, {"24"}], [text[-3000:] for text in texts]
    assert any("weights sum to" in text for text in texts)


def test_the_script_for_slurm_is_sound_and_its_launch_is_one_that_torchrun_knows():
    from torch.distributed.run import get_args_parser

    path = EXAMPLES / "slurm.sbatch"
    subprocess.run(["bash", "-n", str(path)], check=True)
    line = re.search(r"torchrun (.*?) \|\| ", path.read_text().replace("\\\n", " "))[1]
    words = shlex.split(line.replace("$@", "train.py").replace("$first", "node1").replace("$SLURM_JOB_ID", "7"))
    given = get_args_parser().parse_args(words)
    assert (given.nnodes, given.nproc_per_node, given.rdzv_endpoint) == ("2", "8", "node1:29500")
    assert given.training_script == "train.py"
