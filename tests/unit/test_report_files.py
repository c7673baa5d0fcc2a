"""Reports on the disk: written whole or not at all, read by the reader's rule, and what the run ran on."""

from __future__ import annotations

import json
import logging
import math
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from self_healing.core.errors import InputError
from self_healing.report import environment, write
from self_healing.report.postmortem import FILE_NAME, build_postmortem, read_postmortem
from self_healing.report.write import write_json_atomically

SRC = Path(write.__file__).parents[2]
WRITER = """
import sys
from self_healing.report.write import write_json_atomically
n = int(sys.argv[2])
print("go", flush=True)
while True:
    n += 1
    assert write_json_atomically(sys.argv[1], {"n": n, "body": [str(n) * 200] * 500})
"""


def child(code, *args, **more):
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, args)], env={**os.environ, "PYTHONPATH": str(SRC)}, **more
    )


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def is_whole(text):
    data = json.loads(text)
    return data["body"] == [str(data["n"]) * 200] * 500


def test_no_reader_ever_sees_half_a_file_though_the_writer_is_killed_again_and_again(tmp_path):
    path, dice = tmp_path / FILE_NAME, random.Random(0)
    reads, done = [0], threading.Event()
    bad = []

    def read_on():
        while not done.is_set():
            if path.exists():
                text = path.read_text()
                reads[0] += 1
                if not is_whole(text):
                    bad.append(text)

    reader = threading.Thread(target=read_on)
    reader.start()
    kills, until = 0, time.monotonic() + 2.0
    try:
        while time.monotonic() < until:
            with child(WRITER, path, kills * 10**6, stdout=subprocess.PIPE) as writer:
                writer.stdout.readline()
                time.sleep(dice.uniform(0.0, 0.05))
                writer.send_signal(signal.SIGKILL)
            kills += 1
    finally:
        done.set()
        reader.join()
    assert bad == []
    assert kills >= 3
    assert reads[0] > kills
    assert is_whole(path.read_text())
    assert write_json_atomically(path, {"n": 1})
    assert names_in(tmp_path) == [FILE_NAME], "what killed writers left is gone"


def test_writers_at_the_same_time_do_not_take_each_others_files_away(tmp_path):
    path, results = tmp_path / FILE_NAME, []

    def write_some(n):
        results.extend(write_json_atomically(path, {"n": n, "body": [str(n) * 200] * 500}) for _ in range(25))

    threads = [threading.Thread(target=write_some, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 100
    assert is_whole(path.read_text())
    assert names_in(tmp_path) == [FILE_NAME]


def test_a_leftover_is_removed_and_one_in_use_is_not(tmp_path):
    import fcntl

    (tmp_path / ".a.json.dead.tmp").write_text("half")
    (tmp_path / ".other.json.dead.tmp").write_text("not ours")
    os.mkfifo(tmp_path / ".a.json.pipe.tmp")
    with (tmp_path / ".a.json.live.tmp").open("w") as live:
        fcntl.flock(live, fcntl.LOCK_EX)
        assert write_json_atomically(tmp_path / "a.json", {})
    names = set(names_in(tmp_path)) - {".a.json.pipe.tmp"}
    assert names == {"a.json", ".a.json.live.tmp", ".other.json.dead.tmp"}


def test_the_file_is_private_until_its_owner_opens_it(tmp_path):
    path = tmp_path / "new" / "run" / FILE_NAME
    before = os.umask(0)
    try:
        assert write_json_atomically(path, {"text": "\u00e9\x1b"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes() == b'{\n  "text": "\\u00e9\\u001b"\n}\n'
    path.chmod(0o4755)
    assert write_json_atomically(path, {})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "what the owner opened stays open, special bits go"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    elsewhere.chmod(0o666)
    path.unlink()
    path.symlink_to(elsewhere)
    assert write_json_atomically(path, {})
    assert (elsewhere.read_text(), path.is_symlink()) == ("mine", False), "a link is replaced, not followed"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if os.geteuid() == 0:
        path.chmod(0o666)
        os.chown(path, 12345, -1)
        assert write_json_atomically(path, {})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, "another's file does not decide who reads ours"


LIMITED = """
import logging, resource, sys
from self_healing.report.write import write_json_atomically
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
sys.exit(write_json_atomically(sys.argv[1], {"body": "x" * 100_000}))
"""


def test_what_cannot_be_written_is_one_warning_and_the_old_file_stays(tmp_path, caplog):
    path = tmp_path / FILE_NAME
    assert write_json_atomically(path, {"old": 1})
    with child(LIMITED, path, stderr=subprocess.PIPE, text=True) as full:
        _, said = full.communicate()
    assert (full.returncode, said.count("\n")) == (0, 1), said
    assert "could not be written: File too large" in said
    (tmp_path / "folder").mkdir()
    loop = []
    loop.append(loop)
    places = {path / "below.json": {}, tmp_path / "folder": {}, "nul\0": {}, "/proc/none/x.json": {}}
    for place, data in [*places.items(), (path, {"x": math.nan}), (path, {"x": object()}), (path, {"x": loop})]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "self_healing.report"):
            assert write_json_atomically(place, data) is False
        assert len(caplog.records) == 1
        assert "could not be written" in caplog.text
    assert names_in(tmp_path) == ["folder", FILE_NAME]
    assert json.loads(path.read_text()) == {"old": 1}


@pytest.fixture
def told():
    return build_postmortem(
        [], exit_reason="killed", exception=None, last_step=3, final_metrics={"loss": 1.0}, started_s=0, ended_s=1,
        versions={}, hardware={}, environ={},
    )  # fmt: skip


def test_a_postmortem_is_read_as_it_was_written(tmp_path, told):
    path = tmp_path / FILE_NAME
    write_json_atomically(path, told.to_json() | {"of_a_newer_minor": 1})
    assert read_postmortem(path) == told


def test_a_file_that_is_no_postmortem_or_a_newer_one_is_refused_by_name(tmp_path, told):
    path, good = tmp_path / FILE_NAME, told.to_json()
    less = {key: value for key, value in good.items() if key != "advice"}
    for text, reason in (
        (json.dumps(good | {"v": 2}), "postmortem version 2, this version reads 0 and 1"),
        (json.dumps({"exit_reason": "exception"}), "it has no version v"),
        (json.dumps(less), "advice is missing"),
        (json.dumps(good | {"incidents": "none"}), "incidents = 'none': expected list"),
        (json.dumps(good | {"steps_lost": None}), "steps_lost = None: expected int"),
        (json.dumps(good)[:-9], "is not JSON"),
        ('{"v": NaN}', "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "is not a JSON object"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=f"{FILE_NAME}: .*{reason}"):
            read_postmortem(path)
    path.unlink()
    with pytest.raises(InputError, match="No such file"):
        read_postmortem(path)
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        read_postmortem(path)
    with pytest.raises(InputError):
        read_postmortem(tmp_path)


def test_versions_and_hardware_are_found_without_importing_a_framework():
    code = (
        "import json, sys\nfrom self_healing.report.environment import hardware, versions\n"
        "print(json.dumps([versions(), hardware(), [m for m in ('torch', 'numpy', 'transformers') if m in sys.modules]]))"
    )
    with child(code, stdout=subprocess.PIPE, text=True) as asked:
        found, machine, imported = json.loads(asked.communicate()[0])
    assert imported == []
    assert {"python", "platform", "self_healing", "numpy"} <= set(found)
    assert all(isinstance(version, str) and version for version in found.values())
    assert machine["cpus"] >= machine["cpus_usable"] >= 1
    assert machine["memory_bytes"] > 2**27
    assert machine["gpus"] == []


def test_gpus_are_named_only_where_cuda_is_already_in_use(monkeypatch):
    names, initialised = ["NVIDIA H200", "NVIDIA H200"], [True]
    cuda = types.SimpleNamespace(
        is_initialized=lambda: initialised[0], device_count=lambda: 2, get_device_name=names.__getitem__
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    assert environment.hardware()["gpus"] == names
    initialised[0] = False
    assert environment.hardware()["gpus"] == []
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    assert environment.hardware()["gpus"] == [], "half imported"


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": "5000000\n", "memory.max": "9000000\n"}, 5_000_000),
        ("0::/\n", {"memory.max": "max\n"}, None),
        ("0::/../../x\n", {"memory.max": "4000000\n", "../../x/memory.max": "1\n"}, 4_000_000),
        ("3:cpu,memory:/job\n1:name=systemd:/x\n", {"memory/job/memory.limit_in_bytes": "7000000\n"}, 7_000_000),
        ("3:memory:/\n", {"memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ("nonsense\n\n", {}, None),
        ("", {}, None),
    ],
)
def test_the_memory_limit_of_the_control_group_is_the_tightest_above_us(tmp_path, groups, files, limit):
    for name, text in {"proc/self/cgroup": groups, **{f"sys/fs/cgroup/{k}": v for k, v in files.items()}}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert environment.hardware(tmp_path)["cgroup_memory_limit_bytes"] == limit
