"""Programs that a script starts: looked for on a real PATH, and nothing is said where the script can do without."""

from __future__ import annotations

import pytest

from self_healing.preflight.surroundings.machine import Machine

from .checked_scripts import checked, header

RUN = "import os, shutil, subprocess, sys\n"
CUT = "subprocess.run(['ffmpeg', '-i', 'a.mp4', 'a.wav'], check=True)\n"
OWN = "def sh(*words):\n    {}subprocess.run(words, check=True)\n{}sh('git', 'clone', 'https://x/y')\n"


def missing(folder, text, *argv, path="/nowhere"):
    found = checked(folder, text, "missing-program", argv=argv, environ={"PATH": path})
    return [(each.where.line, each.message.split()[0], each.fix) for each in found]


def test_a_program_is_looked_for_on_the_path_of_whoever_starts_the_run(tmp_path):
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    assert not Machine().has_program("ffmpeg", str(program.parent)), "it cannot be started yet"
    assert missing(tmp_path, RUN + CUT, path=str(program.parent)) == [
        (2, "ffmpeg", "Install it, on Debian and Ubuntu: apt-get install -y ffmpeg (as root)")
    ]
    program.chmod(0o755)
    assert missing(tmp_path, RUN + CUT, path=str(program.parent)) == []


@pytest.mark.parametrize(
    ("body", "line", "name"),
    [
        ("os.system('cd data && unzip -q all.zip')\n", 2, "unzip"), ("subprocess.run(['bash', '-c', 'wget https://x/y'], check=True)\n", 2, "wget"),
        (OWN.format("", ""), 4, "git"), (f"def main():\n    {CUT}if __name__ == '__main__':\n    main()\n", 3, "ffmpeg"),
        (f"try:\n    {CUT}except OSError:\n    pass\n{CUT}", 6, "ffmpeg"), ("commit = subprocess.check_output(['git', 'rev-parse', 'HEAD'])\n", 2, "git"),
        (f"shutil.which('git')\n{CUT}", 3, "ffmpeg"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_is_found_where_it_is_started(tmp_path, body, line, name):
    assert [each[:2] for each in missing(tmp_path, RUN + body)] == [(line, name)]


@pytest.mark.parametrize(
    "body",
    [
        f"try:\n    {CUT}except FileNotFoundError:\n    print('no sound')\n", f"if shutil.which('ffmpeg'):\n    {CUT}",
        f"for each in ('git', 'ffmpeg'):\n    if shutil.which(each) is None:\n        sys.exit(each)\n{CUT}",
        f"if not os.path.exists('a.wav'):\n    {CUT}", f"os.system('apt-get update && apt-get install -y ffmpeg')\n{CUT}",
        f"subprocess.run(['conda', 'install', '-y', 'ffmpeg'], check=True)\n{CUT}", f"import static_ffmpeg\nstatic_ffmpeg.add_paths()\n{CUT}",
        f"os.environ['PATH'] += ':/opt/ffmpeg'\n{CUT}", CUT.replace("check", "env=mine, check"), "os.system('git pull || true')\n",
        OWN.format("try:\n        ", "    except OSError:\n        print('no git')\n"), "subprocess.run(['/opt/ffmpeg', '-i', 'a'], check=True)\n",
        "subprocess.run(['my-own-program'], check=True)\n", "subprocess.run([sys.executable, '-m', 'ffmpeg'], check=True)\n",
        f"subprocess.run('command -v ffmpeg', shell=True, check=True)\n{CUT}",
    ],
)  # fmt: skip
def test_nothing_is_said_of_a_program_that_is_seen_to_or_not_needed(tmp_path, body):
    assert missing(tmp_path, RUN + body) == []


@pytest.mark.parametrize(
    "line", ["hf jobs uv run train.py", "ssh node python train.py", "docker run image python train.py"]
)
def test_nothing_is_said_of_a_program_on_another_machine(tmp_path, line):
    (tmp_path / "train.py").write_text(RUN + CUT)
    assert missing(tmp_path, None, *line.split()) == []
    assert len(missing(tmp_path, None, "python", "train.py")) == 1


def test_a_script_with_a_header_may_be_a_jobs_unless_a_command_runs_it_here(tmp_path):
    (tmp_path / "train.py").write_text(header("trl") + RUN + CUT + "subprocess.run(['cmake', '-B', 'b'], check=True)\n")
    assert missing(tmp_path, None) == []
    found = missing(tmp_path, None, "uv", "run", "train.py")
    assert [name for _, name, _ in found] == ["ffmpeg"], "that a build needs its tools is told by another check"
