"""Any command and any config: one sentence, or a recipe that changes one value and nothing else."""

from __future__ import annotations

import json
import math
import sys
import tempfile
import tomllib
from pathlib import Path

import pytest
import tomlkit
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from self_healing.core.errors import ConfigError
from self_healing.supervisor.recipe import Recipe, Role, read_recipe
from self_healing.supervisor.recipe.config_file import read_config
from self_healing.supervisor.settings import RunSettings

EXAMPLES = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
NAMES = st.sampled_from("a b model x-y optim data steps name tags".split()) | st.text(
    "abc _-.#:'\"\\\u00fc{}[]", min_size=1, max_size=5
)
SCALARS = (
    st.integers(-10, 10**6)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.booleans()
    | st.text("abc :#'\"\\\n\t\u00fc{}[]&*!|>%@-", max_size=30)
)
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=12
)
TABLES = st.dictionaries(NAMES, TREES, max_size=5)
RATES = st.floats(1e-9, 10).filter(lambda rate: rate > 0)


@st.composite
def planted(draw) -> tuple[dict, list[str], float]:
    """Return a table with one learning rate somewhere, the path to it, and the rate."""
    table, rate = draw(TABLES), draw(RATES)
    path = [
        *draw(st.lists(st.sampled_from(["training", "optim", "x y"]), max_size=3)),
        draw(st.sampled_from(["lr", "learning_rate"])),
    ]
    inner = table
    for part in path[:-1]:
        if not isinstance(inner.get(part), dict):
            inner[part] = {}
        inner = inner[part]
    inner[path[-1]] = rate
    return table, path, rate


def changed(table: dict, path: list[str], rate: float) -> dict:
    if len(path) == 1:
        return {**table, path[0]: rate}
    return {**table, path[0]: changed(table[path[0]], path[1:], rate)}


def as_yaml(table: dict, layout: int) -> str:
    return yaml.safe_dump(
        table,
        default_flow_style=[None, True, False][layout % 3],
        indent=2 + layout % 5,
        width=[20, 80, 10_000][layout % 3],
        allow_unicode=bool(layout % 2),
        explicit_start=bool(layout % 7 == 0),
        sort_keys=False,
    )


def as_json(table: dict, layout: int) -> str:
    return json.dumps(table, indent=[None, 2, "\t"][layout % 3], ensure_ascii=bool(layout % 2))


def as_toml(table: dict, layout: int) -> str:
    return tomlkit.dumps(table)


@pytest.mark.parametrize(
    ("name", "write", "read"),
    [("c.yaml", as_yaml, yaml.safe_load), ("c.json", as_json, json.loads), ("c.toml", as_toml, tomllib.loads)],
)
def test_a_copy_of_any_config_differs_by_the_rate_only(name, write, read):
    @EXAMPLES
    @given(planted(), st.integers(0, 209), st.booleans())
    def check(case, layout, is_windows):
        table, path, rate = case
        text = write(table, layout)
        if read(text) != table:
            return  # the library that wrote it does not read it so
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            raw = text.replace("\n", "\r\n") if is_windows else text
            if read(raw) != table:
                raw = text
            (root / name).write_bytes(raw.encode())
            (root / "train.py").touch()
            command = (sys.executable, "train.py", "{config}")
            recipe = read_recipe(RunSettings(command=command, config=Path(name), lr_key=".".join(path)), root)
            lower = recipe.with_less_rate(2, 0)
            assert isinstance(lower, Recipe)
            (setting,) = lower.settings(Role.RATE)
            assert math.isclose(setting.value, rate / 2, rel_tol=1e-5)
            launch = lower.prepared(2)
            assert read((root / launch.config).read_bytes().decode()) == changed(table, path, setting.value)
            assert recipe.clean_up() == ()
            assert sorted(p.name for p in root.iterdir()) == sorted([name, "train.py"])
            assert (root / name).read_bytes() == raw.encode()

    check()


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("c.yaml", "a: &x {lr: 1e-3, b: [1, 2]}\nc: *x\nd:\n  <<: *x\n  e: |\n    t\n"),
        ("c.json", '{"a": {"lr": 1e-3, "b": [1, null]}, "c": "\\u00fc"}'),
        ("c.toml", '[a]\nlr = 1e-3\n[[b]]\nc = {d = "x"}\n'),
    ],
)
def test_any_text_is_a_config_or_one_sentence(tmp_path, name, seed):
    path = tmp_path / name
    pieces = st.sampled_from([*seed, "lr", "\r", "\t", "\x00", "\ufeff", "? ", "!!", "%", "${a}", "<<", "'", "1e999"])

    @settings(EXAMPLES, max_examples=300)
    @given(st.lists(st.tuples(st.integers(0, len(seed)), pieces | st.just("")), max_size=6), st.binary(max_size=3))
    def check(cuts, tail):
        text = seed
        for place, piece in cuts:
            text = text[:place] + piece + text[place + (not piece) :]
        path.write_bytes(text.encode() + tail)
        problem = name
        try:
            config = read_config(path, name)
            for leaf in config.leaves:
                if leaf.path and leaf.path == leaf.target and not leaf.problem and not leaf.twice:
                    config.changed({leaf.path: 0.25})
        except ConfigError as error:
            problem = str(error)
        assert problem.startswith(name)
        assert len(problem.splitlines()) == 1

    check()


def test_any_command_is_a_recipe_or_one_sentence(tmp_path):
    (tmp_path / "train.py").touch()
    tokens = st.sampled_from(
        "--lr --lr=1 --lr= -lr 1e-3 lr=1 lr=1,2 a.lr=3 --learning-rate 2 --batch_size 32 --batch-size=8 -- - = == --= "
        "-1 +lr=2 ++lr=3 ~lr train.py -m -c --a.b.lr=4 lr='1' lr=' --gradient_accumulation_steps 4 num_workers=2 "
        "--eval_batch_size constant_product=500 {} ${x} @x".split()
    ) | st.text(max_size=4)

    @settings(EXAMPLES, max_examples=500)
    @given(st.lists(tokens, max_size=8))
    def check(arguments):
        arguments = [argument.replace("\0", "") for argument in arguments]
        command = (sys.executable, "train.py", *arguments)
        recipe, problem = None, ""
        try:
            recipe = read_recipe(RunSettings(command=command), tmp_path)
        except ConfigError as error:
            problem = str(error)
        if recipe is None:
            assert len(problem.splitlines()) == 1
            return
        assert recipe.prepared(1).argv == list(command)
        for lower in (recipe.with_less_rate(1.5, 0), recipe.with_less_batch(1.5, 1), recipe.with_fewer_workers()):
            if isinstance(lower, Recipe):
                after = lower.prepared(2).argv
                differing = sum(a != b for a, b in zip(command, after, strict=True))
                assert differing == len(lower.changes) > 0
        again = recipe.with_argument("--resume", "x").prepared(2).argv
        assert again[-2:] == ["--resume", "x"]
        assert again[:-2] == list(command)

    check()
