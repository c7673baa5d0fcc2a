"""Whose line is it: several processes write into one log, and each one's lines belong together.

What marks them: `[rank0]:` of PyTorch, `[default0]:` and `[0]:` of torchrun, `0:` of srun --label, `[1,0]<stderr>:` of
mpirun, `(Actor pid=12, ip=...)` of Ray, `worker-1:` of pdsh, and the time and process that some schedulers put first.
"""

from __future__ import annotations

import re

_STAMP = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?Z?"
_PREFIX = re.compile(
    r"(?:"
    r"\[(?P<rank>(?:rank|default|trainer|Rank )?\d{1,6})\]:? ?"
    r"|\[(?P<mpi>\d{1,4},\d{1,6})\]<std(?:err|out)>: ?"
    r"|(?P<srun>[ ]{0,4}\d{1,5}): (?! )(?=\S)|(?P<srun_indented>\d{1,5}): (?=[ ]{2})"
    r"|(?P<ray>\([A-Za-z_][\w.:]{0,60}(?: pid=\d{1,9})?(?:, ip=[\d.]{7,15})?\)) ?"
    r"|(?P<host>(?:worker|node|host|gpu)[-_]?\d{1,5}): ?"
    rf"|{_STAMP} \[(?P<task>[^\]\n]{{0,80}}\(pid \d{{1,9}}\))\] (?:\[[0-9a-f-]{{8,40}}\] ?)?"
    r")"
)
_GROUP = re.compile(r"\s{1,16}[|] ")
"""How a traceback of an ExceptionGroup begins its lines."""
_RANK = re.compile(r"(?:rank|Rank |default|trainer)?(\d{1,6})")


def split_source(line: str) -> tuple[str, str]:
    """Return whose line it is, empty where nothing says so, and what it says, with its indentation.

    Example:
        >>> split_source('[rank3]:   File "train.py", line 7, in <module>')
        ('rank3', '  File "train.py", line 7, in <module>')
        >>> split_source("loss: 2.1")
        ('', 'loss: 2.1')

    """
    found = _PREFIX.match(line)
    if found is None:
        group = _GROUP.match(line)
        return ("", line) if group is None else ("", line[group.end() :])
    source = next(value for value in found.groups() if value is not None).strip()
    rest = line[found.end() :]
    if not rest.strip():  # "[0]:" alone heads an entry of torchrun's summary
        return "", line
    again = _PREFIX.match(rest)
    if (
        again is not None and again["rank"] is not None and rest[again.end() :].strip()
    ):  # [0] [0]: launchers in launchers
        rest = rest[again.end() :]
    return source, rest


def rank_of(source: str) -> int | None:
    """Return the rank that a source stands for, where it says one."""
    found = _RANK.fullmatch(source)
    return int(found[1]) if found else None
