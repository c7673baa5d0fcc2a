"""How far values go down: the learning rate, the batch with and without accumulation, workers; and where it ends."""

from __future__ import annotations

import pytest

from self_healing.core.errors import ConfigError
from self_healing.supervisor.recipe import NoRoom, Recipe, Role
from self_healing.supervisor.recipe.numbers import number_of, written
from self_healing.supervisor.recipe.recipe import largest_divisor

from .recipes import recipe_of, value, with_config


def values_until_no_room(recipe: Recipe, role: Role, change) -> tuple[list[float], str]:
    seen = []
    while isinstance(recipe, Recipe):
        seen.append(value(recipe, role))
        recipe = change(recipe)
    return seen, recipe.reason


def test_the_rate_goes_down_to_the_least_and_no_further(tmp_path):
    recipe = recipe_of(tmp_path, "--lr", "5e-6")
    rates, reason = values_until_no_room(recipe, Role.RATE, lambda r: r.with_less_rate(1.5, 1e-6))
    assert rates == [5e-6, 3.33333e-6, 2.22222e-6, 1.48148e-6]
    assert reason == (
        "lr is 1.48e-06, and 1.48e-06 / 1.5 would be below the least that is allowed, 1.00e-06; "
        "a lower --min-lr would allow it"
    )


def test_the_least_rate_itself_is_allowed(tmp_path):
    lower = recipe_of(tmp_path, "--lr", "1.5e-6").with_less_rate(1.5, 1e-6)
    assert value(lower, Role.RATE) == 1e-6
    assert isinstance(lower.with_less_rate(1.5, 1e-6), NoRoom)


def test_without_accumulation_the_batch_is_divided_and_rounded_down(tmp_path):
    recipe = recipe_of(tmp_path, "--batch_size", "32")
    sizes, reason = values_until_no_room(recipe, Role.BATCH, lambda r: r.with_less_batch(1.5, 1))
    assert sizes == [32, 21, 14, 9, 6, 4, 2, 1]
    assert reason.startswith("batch_size is 1, and the next smaller one, less than 1, would be below the least")
    sizes, reason = values_until_no_room(recipe, Role.BATCH, lambda r: r.with_less_batch(1.5, 5))
    assert sizes == [32, 21, 14, 9, 6]
    assert reason.startswith(
        "batch_size is 6, and the next smaller one, 4, would be below the least that is allowed, 5"
    )


@pytest.mark.parametrize(
    ("batch", "accumulated", "expected"),
    [
        (32, 1, [(16, 2), (8, 4), (4, 8), (2, 16), (1, 32)]),
        (12, 3, [(6, 6), (3, 12), (1, 36)]),
        (7, 2, [(1, 14)]),
    ],
)
def test_with_accumulation_the_effective_batch_is_exact(tmp_path, batch, accumulated, expected):
    recipe = recipe_of(tmp_path, "--batch_size", str(batch), "--gradient_accumulation_steps", str(accumulated))
    seen = []
    while isinstance(recipe := recipe.with_less_batch(1.5, 1), Recipe):
        seen.append((value(recipe, Role.BATCH), value(recipe, Role.ACCUMULATION)))
    assert seen == expected
    assert {size * steps for size, steps in seen} == {batch * accumulated}


def test_accumulation_in_the_config_goes_with_a_batch_in_the_command(tmp_path):
    recipe = with_config(tmp_path, "c.yaml", "gradient_accumulation_steps: 1", "--batch_size", "32")
    launch = recipe.with_less_batch(1.5, 1).prepared(2)
    assert launch.argv[-1] == "16"
    assert (tmp_path / launch.config).read_text() == "gradient_accumulation_steps: 2"


def test_a_batch_in_the_config_goes_with_accumulation_in_the_command(tmp_path):
    recipe = with_config(tmp_path, "c.yaml", "batch_size: 32\ngrad_accum_steps: 5", "--grad-accum-steps", "1")
    launch = recipe.with_less_batch(1.5, 1).prepared(2)
    assert launch.argv[-1] == "2"
    assert (tmp_path / launch.config).read_text() == "batch_size: 16\ngrad_accum_steps: 5"


def test_of_several_accumulations_the_one_beside_the_batch_counts(tmp_path):
    text = "training: {batch_size: 8, gradient_accumulation_steps: 2}\ndeepspeed: {gradient_accumulation_steps: %s}"
    both = with_config(tmp_path, "c.yaml", text % 2).with_less_batch(1.5, 1)
    assert [setting.value for setting in both.settings(Role.ACCUMULATION)] == [4, 4]
    one = with_config(tmp_path, "c.yaml", text % 3).with_less_batch(1.5, 1)
    assert [setting.value for setting in one.settings(Role.ACCUMULATION)] == [4]
    auto = with_config(tmp_path, "c.yaml", text % "auto").with_less_batch(1.5, 1)
    assert [setting.value for setting in auto.settings(Role.ACCUMULATION)] == [4]
    apart = "batch_size: 8\na: {gradient_accumulation_steps: 2}\nb: {gradient_accumulation_steps: 3}"
    with pytest.raises(ConfigError, match=r"a\.gradient_accumulation_steps = 2 and b\.\S+ = 3 differ"):
        with_config(tmp_path, "c.yaml", apart)


def test_what_is_proportional_is_divided_as_the_batch_is(tmp_path):
    text = "batch_size: 32\nschedule: {constant_product: 500}\nwarmup: 7.5\nsteps: 1\n"
    recipe = with_config(tmp_path, "c.yaml", text, scale_with_batch=("warmup", "steps"))
    once = recipe.with_less_batch(1.5, 1)
    assert [setting.value for setting in once.settings(Role.SCALED)] == [333, 5.0, 1]
    assert [setting.value for setting in once.with_less_batch(1.5, 1).settings(Role.SCALED)] == [222, 3.33333, 1]
    exact = with_config(tmp_path, "c.yaml", text + "accum_iter: 1").with_less_batch(1.5, 1)
    assert [setting.value for setting in exact.settings(Role.SCALED)] == [250]


def test_the_rate_itself_may_be_proportional(tmp_path):
    recipe = recipe_of(tmp_path, "--lr", "3e-4", "--batch_size", "32", scale_with_batch=("lr",))
    both = recipe.with_less_batch(1.5, 1)
    assert (value(both, Role.RATE), value(both, Role.BATCH)) == (2e-4, 21)
    assert [change.text() for change in both.changes] == ["lr: 3.00e-04 -> 2.00e-04", "batch_size: 32 -> 21"]
    assert value(both.with_less_rate(2, 0), Role.SCALED) == 1e-4


@pytest.mark.parametrize("text", ["constant_product: auto", "constant_product: -5", "constant_product: [1]"])
def test_a_product_that_is_no_number_is_left_alone_unless_asked_for(tmp_path, text):
    assert with_config(tmp_path, "c.yaml", f"batch_size: 3\n{text}").with_less_batch(1.5, 1).changes[-1].after == 2
    with pytest.raises(
        ConfigError, match=r"^--scale-with-batch constant_product: constant_product \(c\.yaml, line 2\) "
    ):
        with_config(tmp_path, "c.yaml", f"batch_size: 3\n{text}", scale_with_batch=("constant_product",))


def test_workers_are_halved_down_to_none(tmp_path):
    recipe = recipe_of(tmp_path, "--dataloader_num_workers", "5")
    counts, reason = values_until_no_room(recipe, Role.WORKERS, lambda r: r.with_fewer_workers())
    assert counts == [5, 2, 1, 0]
    assert reason == "dataloader_num_workers is 0, and there cannot be fewer; load less into memory at once"
    none = recipe_of(tmp_path).with_fewer_workers()
    assert isinstance(none, NoRoom)
    assert none.reason.startswith("no number of data loading workers was found in the command")


@pytest.mark.parametrize(
    ("more", "least"),
    [
        ("prefetch_factor: 4", 1),
        ("persistent_workers: true", 1),
        ("prefetch_factor: null", 0),
        ("persistent_workers: no", 0),
    ],
)
def test_one_worker_stays_where_the_loader_needs_one(tmp_path, more, least):
    recipe = with_config(tmp_path, "c.yaml", f"data: {{num_workers: 2, {more}}}")
    counts, _ = values_until_no_room(recipe, Role.WORKERS, lambda r: r.with_fewer_workers())
    assert counts[-1] == least


def test_every_kind_of_worker_goes_down_together(tmp_path):
    fewer = with_config(
        tmp_path, "c.yaml", "a: {num_workers: 4}\nb: {num_workers: 8}\nval: {num_workers: 2}"
    ).with_fewer_workers()
    assert [setting.value for setting in fewer.settings(Role.WORKERS)] == [2, 4]


def test_changes_are_told_against_the_users_values_and_against_an_earlier_attempt(tmp_path):
    first = recipe_of(tmp_path, "--lr", "3e-4", "--batch_size", "32")
    second = first.with_less_rate(1.5, 0)
    third = second.with_less_rate(1.5, 0).with_less_batch(1.5, 1)
    assert first.changes == ()
    assert [c.text() for c in third.changes_since(second)] == ["lr: 2.00e-04 -> 1.33e-04", "batch_size: 32 -> 21"]
    assert [c.text() for c in third.changes] == ["lr: 3.00e-04 -> 1.33e-04", "batch_size: 32 -> 21"]
    assert third.changes[0].role is Role.RATE
    assert third.changes_since(third) == ()


def test_what_is_known_is_told_before_it_is_used(tmp_path):
    text = "num_workers: 4\nbatch_size: auto\noutput_dir: out"
    lines = with_config(tmp_path, "c.yaml", text, "--lr", "1e-3").describe()
    assert lines == [
        "learning rate: --lr = 1.00e-03 on the command line",
        "batch size: batch_size = auto in c.yaml; it is 'auto', which is no whole number above 0 and is left alone",
        "data loading workers: num_workers = 4 in c.yaml",
        "output folder: output_dir = out in c.yaml",
        "gradient accumulation: not found in the command and c.yaml",
    ]


@pytest.mark.parametrize(
    ("number", "most", "expected"),
    [(32, 21, 16), (30, 20, 15), (7, 4, 1), (36, 24, 18), (2, 1, 1), (1, 0, 0), (49, 32, 7)],
)
def test_the_largest_divisor_is_found(number, most, expected):
    assert largest_divisor(number, most) == expected


def test_numbers_are_written_so_that_yaml_reads_numbers():
    assert written(1e-5) == "1.0e-05"
    assert written(2e-4 / 1.5) == "1.33333e-04"
    assert written(0.3) == "3.0e-01"
    assert written(21) == "21"
    assert written("text") == "text"
    assert number_of(" 1_000 ") == 1000
    assert number_of("9" * 41) is None
    assert number_of("\u0663") is None, "digits of other scripts are no numbers here"
