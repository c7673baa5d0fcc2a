"""`heal check --fix`: a corrected header, and not a byte more."""

from __future__ import annotations

import difflib
import os
import stat
import subprocess
import sys

import pytest

from self_healing.core.errors import InputError
from self_healing.core.failure import Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.packages.header_fix import fix_header, write_fix
from self_healing.preflight.subject import read_subject

from .checked_scripts import OF_HEADERS, checked, header

BODY = (
    "import yaml\nfrom PIL import Image\nfrom transformers import AutoModelForCausalLM\nfrom trl import SFTConfig\n"
    "m = AutoModelForCausalLM.from_pretrained('a/b', device_map='auto', attn_implementation='flash_attention_2')\n"
    "args = SFTConfig(output_dir='out', report_to='wandb', optim='adamw_bnb_8bit')\n"
)


def fixed(folder, content, name="train.py"):
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    subject = read_subject([name], [], CheckOptions(), folder)
    return fix_header(subject, subject.scripts[0])


def left(folder, content):
    """Return the findings about the header that are left in what was written."""
    found = checked(folder, content, *OF_HEADERS, name="again.py")
    return [(each.check, each.message) for each in found if each.severity > Severity.INFO]


HEADERS = [
    header("trl", "torch"),
    '# /// script\n# dependencies = ["trl", "torch"]\n# ///\n',
    '# /// script\n# dependencies = ["trl","torch",]\n# ///\n',
    '# /// script\n# dependencies = [ "trl",\n#    "torch" ]  # two\n# ///\n',
    "# /// script\n# dependencies = [\n#   # the trainer\n#   'trl',  # and why\n#\n#   'torch'  # last\n# ]\n# ///\n",
    "# /// script\n# dependencies = []\n# ///\n",
    '# /// script\n# requires-python = ">=3.11"\n# ///\n',
    "# /// script\n# ///\n",
    '# /// script\n# [tool.uv]\n# dependencies = ["x"]\n# ///\n',
    '# /// script\n# dependencies = [\n#     "trl",\n# ]\n#\n# [tool.uv]\n# dependencies = ["x"]\n# ///\n',
    '#!/usr/bin/env -S uv run\n"""A script."""\n# /// script\n# dependencies = [\n#     "sklearn>1",\n# ]\n# ///\nimport sklearn\n',
    "",
    "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n",
]


@pytest.mark.parametrize("head", HEADERS)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_nothing_is_left_to_find_in_a_corrected_header_and_nothing_else_changes(tmp_path, head, end):
    text = (head + BODY).replace("\n", end)
    if "///" in head:  # without one nothing says that it is run in an empty environment
        assert left(tmp_path, text.encode())
    result = fixed(tmp_path, text).content
    assert left(tmp_path, result) == []
    assert result.endswith(BODY.replace("\n", end).encode())
    assert result.count(b"\n") == result.count(end.encode())
    steps = difflib.SequenceMatcher(None, text, result.decode(), autojunk=False).get_opcodes()
    allowed = {"equal", "insert", "replace", "delete"} if "sklearn" in head else {"equal", "insert"}
    assert {step[0] for step in steps} <= allowed


def test_each_new_dependency_says_why_it_is_there(tmp_path):
    result = fixed(tmp_path, header("trl>=1.0,<2  ; python_version > '3'", "torch>=2.4") + BODY).content.decode()
    block = result.split("# ///\n")[0]
    for name, why in (
        ("pillow", "import PIL"), ("flash-attn", 'attn_implementation="flash_attention_2"'), ("wandb", 'report_to="wandb"'),
        ("bitsandbytes", 'optim="adamw_bnb_8bit"'),
    ):  # fmt: skip
        line = next(line for line in block.split("\n") if f'"{name}' in line)
        assert line.endswith(f"# {why}")
    assert "pyyaml" not in block  # trl brings it


def test_order_comments_and_spacing_of_what_is_there_are_kept(tmp_path):
    head = '# /// script\n# dependencies = [\n#   "torch>=2.4",   # first\n#   # a line of its own\n#   "trl[peft]"   # second\n# ]\n# ///\n'
    lines = fixed(tmp_path, head + "import trl, cv2\n").content.decode().split("\n")
    assert lines[2:4] == ['#   "torch>=2.4",   # first', "#   # a line of its own"]
    assert lines[4].startswith('#   "trl[peft]>=')
    assert lines[4].endswith('",   # second')
    assert lines[5].startswith('#   "opencv-python-headless')


def test_bytes_that_are_no_text_stay_what_they_are(tmp_path):
    body = b"# -*- coding: latin-1 -*-\n" + header("torch>=2.4").encode() + b"import cv2\nname = 'caf\xe9'\n\x0c\t \n"
    result = fixed(tmp_path, body).content
    assert result.endswith(b"import cv2\nname = 'caf\xe9'\n\x0c\t \n")
    assert b"opencv" in result
    with_mark = b"\xef\xbb\xbfimport cv2\n"
    assert fixed(tmp_path, with_mark).content.startswith(b"\xef\xbb\xbf# /// script\n")


def test_a_header_without_faults_is_left_alone(tmp_path):
    assert fixed(tmp_path, header("trl>=1.0,<2") + "import trl\n") is None
    assert fixed(tmp_path, "import os\n") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("# /// script\n# dependencies = [\nimport cv2\n", "mend this first"),
        (header("torch>=2") + "import os, cv2\nos.system('pip install -r more.txt')\n", "installs packages itself"),
        ('# /// script\n# dependencies = ["""torch"""]\n# ///\nimport cv2\n', "cannot be changed"),
    ],
)
def test_what_cannot_be_corrected_says_why(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        fixed(tmp_path, text)


def test_a_copy_is_written_beside_the_script_and_another_is_not_overwritten(tmp_path):
    fix = fixed(tmp_path, header("torch>=2.4") + "import cv2\n")
    (tmp_path / "train.py").chmod(0o751)
    before = (tmp_path / "train.py").read_bytes()
    target = write_fix(fix, in_place=False)
    assert target == tmp_path / "train.fixed.py"
    assert (target.read_bytes(), stat.S_IMODE(target.stat().st_mode)) == (fix.content, 0o751)
    assert write_fix(fix, in_place=False) == target  # the same again is no harm
    target.write_text("mine")
    with pytest.raises(InputError, match="is there already"):
        write_fix(fix, in_place=False)
    assert (target.read_text(), (tmp_path / "train.py").read_bytes()) == ("mine", before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.fixed.py", "train.py"]


def test_in_place_keeps_rights_and_links(tmp_path):
    (tmp_path / "real").mkdir()
    fix = fixed(tmp_path / "real", header("torch>=2.4") + "import cv2\n")
    (tmp_path / "real" / "train.py").chmod(0o700)
    (tmp_path / "train.py").symlink_to(tmp_path / "real" / "train.py")
    subject = read_subject(["train.py"], [], CheckOptions(), tmp_path)
    write_fix(fix_header(subject, subject.scripts[0]), in_place=True)
    assert (tmp_path / "train.py").is_symlink()
    real = tmp_path / "real" / "train.py"
    assert (real.read_bytes(), stat.S_IMODE(real.stat().st_mode)) == (fix.content, 0o700)


def test_the_command_says_what_it_wrote_and_json_stays_json(tmp_path):
    import json

    (tmp_path / "train.py").write_text(header("torch") + "import cv2\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "self_healing", "check", "train.py", "--offline", "--fix", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 1, done.stderr
    assert {each["check"] for each in json.loads(done.stdout)["findings"]} >= {
        "import-not-in-header",
        "no-version-bound",
    }
    assert done.stderr.startswith("wrote train.fixed.py:\n    added opencv-python-headless (import cv2)")
    assert "torch: bound >=" in done.stderr
    done = subprocess.run(
        [*command, "--in-place"], cwd=tmp_path, capture_output=True, text=True, check=False, env=environ
    )
    assert done.stderr.startswith("wrote train.py:")
    assert (tmp_path / "train.py").read_bytes() == (tmp_path / "train.fixed.py").read_bytes()
