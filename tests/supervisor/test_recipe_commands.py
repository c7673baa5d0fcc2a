"""Values in a command: every form of a flag, what counts where it is given twice, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from self_healing.core.errors import ConfigError
from self_healing.supervisor.recipe import NoRoom, Recipe, Role, read_recipe
from self_healing.supervisor.settings import RunSettings

from .recipes import behind, recipe_of, value


@pytest.mark.parametrize(
    ("given", "next_one"),
    [
        (["--lr", "2e-4"], ["--lr", "1.33333e-04"]),
        (["--lr=2e-4"], ["--lr=1.33333e-04"]),
        (["-lr", "2e-4"], ["-lr", "1.33333e-04"]),
        (["--learning_rate", "0.0002"], ["--learning_rate", "1.33333e-04"]),
        (["--learning-rate=.0002"], ["--learning-rate=1.33333e-04"]),
        (["--training.learning_rate", "2e-4"], ["--training.learning_rate", "1.33333e-04"]),
        (["--optimizer.learning-rate=2E-4"], ["--optimizer.learning-rate=1.33333e-04"]),
        (["training.learning_rate=2e-4"], ["training.learning_rate=1.33333e-04"]),
        (["+a.lr=2e-4"], ["+a.lr=1.33333e-04"]),
        (["++a.b.lr=2e-4"], ["++a.b.lr=1.33333e-04"]),
        (["lr='2e-4'"], ["lr='1.33333e-04'"]),
        (["--cfg-options", "optimizer.lr=2e-4", "x=1"], ["--cfg-options", "optimizer.lr=1.33333e-04", "x=1"]),
        (["--lr", "3"], ["--lr", "2.0e+00"]),
        (["--lr", "1_5e-3"], ["--lr", "1.0e-02"]),
    ],
)
def test_a_rate_is_changed_where_it_stands(tmp_path, given, next_one):
    recipe = recipe_of(tmp_path, "--epochs", "3", *given, "--seed", "1")
    assert behind(recipe.prepared(1)) == ["--epochs", "3", *given, "--seed", "1"]
    lower = recipe.with_less_rate(1.5, 1e-6)
    assert isinstance(lower, Recipe)
    assert behind(lower.prepared(2)) == ["--epochs", "3", *next_one, "--seed", "1"]
    assert behind(recipe.prepared(3)) == ["--epochs", "3", *given, "--seed", "1"], "a recipe is a value"


@pytest.mark.parametrize(
    "flag",
    "--per_device_train_batch_size --per-device-train-batch-size --train_batch_size --batch_size --batch-size "
    "--micro_batch_size --meta_batch_size --data.batch_size --train.dataloader.batch-size".split(),
)
def test_a_batch_is_found_by_its_name(tmp_path, flag):
    recipe = recipe_of(tmp_path, flag, "32", "--per_device_eval_batch_size", "64", "--eval.batch_size=4")
    assert value(recipe, Role.BATCH) == 32
    smaller = recipe.with_less_batch(1.5, 1)
    assert behind(smaller.prepared(2))[:2] == [flag, "21"]
    assert behind(smaller.prepared(2))[2:] == ["--per_device_eval_batch_size", "64", "--eval.batch_size=4"]


@pytest.mark.parametrize(
    "flag", "--eval_batch_size --per_device_eval_batch_size --val.batch_size --test-data.batch_size".split()
)
def test_a_batch_of_an_evaluation_is_never_taken(tmp_path, flag):
    recipe = recipe_of(tmp_path, flag, "32")
    assert recipe.settings(Role.BATCH) == ()
    answer = recipe.with_less_batch(1.5, 1)
    assert isinstance(answer, NoRoom)
    assert "no batch size was found in the command" in answer.reason
    assert "--batch-key" in answer.reason


def test_of_a_flag_that_is_given_twice_the_last_counts(tmp_path):
    recipe = recipe_of(tmp_path, "--lr", "1", "--lr=3e-4", "--batch-size", "8", "--batch_size", "6")
    assert value(recipe, Role.RATE) == 3e-4
    lower = recipe.with_less_rate(1.5, 0).with_less_batch(1.5, 1)
    assert behind(lower.prepared(2)) == ["--lr", "1", "--lr=2.0e-04", "--batch-size", "8", "--batch_size", "4"]


def test_of_an_override_that_is_given_twice_the_last_counts(tmp_path):
    recipe = recipe_of(tmp_path, "a.lr=1", "a.lr=3e-4")
    assert behind(recipe.with_less_rate(1.5, 0).prepared(2)) == ["a.lr=1", "a.lr=2.0e-04"]


def test_a_launchers_own_accumulation_gives_way_to_the_scripts(tmp_path):
    (tmp_path / "train.py").touch()
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command = (*launcher, "--gradient_accumulation_steps", "9", "train.py", "--batch_size", "8")
    command += ("--gradient_accumulation_steps", "2")
    smaller = read_recipe(RunSettings(command=command), tmp_path).with_less_batch(1.5, 1)
    assert smaller.prepared(2).argv[5:] == [*command[5:9], "4", "--gradient_accumulation_steps", "4"]


def test_what_stands_before_the_script_is_no_override(tmp_path):
    (tmp_path / "train.py").touch()
    command = ("env", "lr=1", sys.executable, "train.py", "opt.lr=3e-4")
    recipe = read_recipe(RunSettings(command=command), tmp_path)
    assert recipe.with_less_rate(1.5, 0).prepared(2).argv == [*command[:-1], "opt.lr=2.0e-04"]


@pytest.mark.parametrize("text", ["--lr=", "--lr", "--batch_size=", "lr="])
def test_a_value_that_is_missing_is_an_error_at_once(tmp_path, text):
    with pytest.raises(ConfigError, match=r"^\S+ \(on the command line\) has no value; give it one$"):
        recipe_of(tmp_path, text)
    with pytest.raises(ConfigError, match="has no value"):
        recipe_of(tmp_path, text, "--other", "1")


@pytest.mark.parametrize("text", ["1e-3,1e-4", "choice(1e-3,1e-4)", "range(1,3)", "interval(0,1)"])
def test_a_sweep_is_a_clear_error(tmp_path, text):
    with pytest.raises(ConfigError, match="asks for a sweep of several runs, but heal run supervises one"):
        recipe_of(tmp_path, f"lr={text}")
    recipe_of(tmp_path, f"seed={text}", "lr=1")


@pytest.mark.parametrize("text", "0 -1 -1e-3 auto nan inf 1e999 0x10 010 1__0 1:30 True 1,5 None 1e-3x".split())
def test_a_rate_that_is_no_positive_number_is_left_alone(tmp_path, text):
    recipe = recipe_of(tmp_path, "--lr", text)
    answer = recipe.with_less_rate(1.5, 1e-6)
    assert isinstance(answer, NoRoom)
    assert answer.reason.startswith("--lr on the command line is ")
    assert "no positive number" in answer.reason
    assert behind(recipe.prepared(1)) == ["--lr", text]
    with pytest.raises(ConfigError, match=r"^--lr-key lr: --lr \(on the command line\) is .* no positive number"):
        recipe_of(tmp_path, "--lr", text, lr_key="lr")


@pytest.mark.parametrize("text", "0 -4 32.0 3.2e1 auto 0b11 12x 99999999999999999999".split())
def test_a_batch_that_is_no_whole_number_is_left_alone(tmp_path, text):
    answer = recipe_of(tmp_path, f"--batch_size={text}").with_less_batch(1.5, 1)
    assert isinstance(answer, NoRoom)
    assert "no whole number above 0" in answer.reason


def test_a_flag_with_several_numbers_is_not_guessed_at(tmp_path):
    answer = recipe_of(tmp_path, "--lr", "1e-3", "1e-4").with_less_rate(1.5, 0)
    assert isinstance(answer, NoRoom)
    assert "several numbers" in answer.reason


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (["--lr", "1", "--learning_rate", "1"], "lr"),
        (["--actor.lr", "1", "--critic.lr", "1"], "actor.lr"),
        (["actor.lr=1", "critic.lr=1"], "actor.lr"),
    ],
)
def test_two_rates_in_a_command_are_a_question(tmp_path, arguments, key):
    with pytest.raises(ConfigError, match=rf"^learning rate: .* and .* could be meant; say which with --lr-key {key}$"):
        recipe_of(tmp_path, *arguments)
    recipe = recipe_of(tmp_path, *arguments, lr_key=key)
    changed = behind(recipe.with_less_rate(2, 0).prepared(2))
    assert [a for a, b in zip(arguments, changed, strict=True) if a != b] == [arguments[1 if len(arguments) > 2 else 0]]


def test_a_value_that_cannot_be_changed_is_no_rival(tmp_path):
    recipe = recipe_of(tmp_path, "--name", "lr=0.1-long", "--learning_rate", "2e-4")
    assert recipe.settings(Role.RATE)[0].key == "--learning_rate"


@pytest.mark.parametrize("key", ["--peak", "peak", "peak=", "opt.peak", "--opt.peak"])
def test_a_key_that_is_asked_for_is_found(tmp_path, key):
    arguments = ["--opt.peak", "3e-4", "--lr", "1"] if "." in key else ["--peak", "3e-4", "--lr", "1"]
    recipe = recipe_of(tmp_path, *arguments, lr_key=key)
    assert behind(recipe.with_less_rate(1.5, 0).prepared(2)) == [arguments[0], "2.0e-04", "--lr", "1"]


def test_a_key_that_is_not_there_is_an_error_at_once(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^--lr-key peek: there is no such key in the command; did you mean --peak\?$"
    ):
        recipe_of(tmp_path, "--peak", "1", lr_key="peek")
    with pytest.raises(
        ConfigError, match=r"^--batch-key zzz: there is no such key in the command; write the key as it"
    ):
        recipe_of(tmp_path, "--peak", "1", batch_key="zzz")
    with pytest.raises(ConfigError, match=r"^--scale-with-batch warmup: there is no such key in the command"):
        recipe_of(tmp_path, "--batch_size", "1", scale_with_batch=("warmup",))


def test_a_rate_in_the_environment_is_changed_there(tmp_path):
    recipe = recipe_of(tmp_path, lr_key="env:PEAK", environ={"PEAK": "3e-4"})
    assert recipe.describe()[0] == "learning rate: PEAK = 3.00e-04 in the environment"
    assert recipe.prepared(1).environ == {}
    assert recipe.with_less_rate(1.5, 0).prepared(2).environ == {"PEAK": "2.0e-04"}
    with pytest.raises(ConfigError, match="there is no environment variable 'PEEK'"):
        recipe_of(tmp_path, lr_key="env:PEEK", environ={})


def test_a_missing_script_or_program_is_an_error_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"^gone\.py: there is no such script"):
        read_recipe(RunSettings(command=(sys.executable, "-u", "gone.py", "--lr", "1")), tmp_path)
    launched = (sys.executable, "-m", "torch.distributed.run", "gone.py")
    with pytest.raises(ConfigError, match=r"^gone\.py: there is no such script"):
        read_recipe(RunSettings(command=launched), tmp_path)
    with pytest.raises(ConfigError, match=r"^no-such-program: there is no such command"):
        read_recipe(RunSettings(command=("no-such-program", "--lr", "1")), tmp_path)
    with pytest.raises(ConfigError, match=r"^\./gone: there is no such command"):
        read_recipe(RunSettings(command=("./gone",)), tmp_path)
    with pytest.raises(ConfigError, match=r"^'': there is no such command"):
        read_recipe(RunSettings(command=("",)), tmp_path)
    (tmp_path / "plain.sh").write_text("true")
    with pytest.raises(ConfigError, match=r"^\./plain\.sh: is not executable"):
        read_recipe(RunSettings(command=("./plain.sh",)), tmp_path)
    read_recipe(RunSettings(command=(sys.executable, "-c", "print('x.py')", "other.py")), tmp_path)
    read_recipe(RunSettings(command=(sys.executable, "-m", "json.tool", "other.py")), tmp_path)


def test_forms_are_not_mixed(tmp_path):
    for settings in ({"train_script": "x.py"}, {"config_path": "conf"}, {"config_name": "config"}):
        with pytest.raises(ConfigError, match="is for Hydra's form without a command"):
            recipe_of(tmp_path, **settings)
    with pytest.raises(ConfigError, match=r"^lr=1: stands before the command"):
        recipe_of(tmp_path, overrides=("lr=1",))
    with pytest.raises(ConfigError, match=r"^the command has {config}, but no config was given"):
        recipe_of(tmp_path, "--config={config}")
    with pytest.raises(ConfigError, match=r"^--config a\.yaml: the command has no {config}; write {config} where"):
        recipe_of(tmp_path, "--config", "a.yaml", config=Path("a.yaml"))


def test_an_argument_is_set_in_its_place_or_behind_the_rest(tmp_path):
    given = recipe_of(tmp_path, "--resume_from_checkpoint", "none", "--lr", "1")
    assert behind(given.with_argument("--resume_from_checkpoint", "a b").prepared(2))[:2] == [
        "--resume_from_checkpoint",
        "a b",
    ]
    bare = recipe_of(tmp_path, "--resume_from_checkpoint", "--lr", "1")
    assert behind(bare.with_argument("--resume-from-checkpoint", "x").prepared(2)) == [
        "--resume_from_checkpoint=x",
        "--lr",
        "1",
    ]
    plain = recipe_of(tmp_path, "--lr", "1")
    assert behind(plain.with_argument("--ckpt", "x").with_argument("--ckpt", "y").prepared(2))[2:] == ["--ckpt", "y"]
    assert behind(plain.with_argument("--ckpt=", "x").prepared(2))[2:] == ["--ckpt=x"]
    assert behind(plain.with_argument("ckpt", "x").prepared(2))[2:] == ["--ckpt", "x"]
    assert behind(plain.with_argument("+a.ckpt=", "epoch=1,2.ckpt").prepared(2))[2:] == ["+a.ckpt='epoch=1,2.ckpt'"]
    again = plain.with_argument("--ckpt", "x").with_less_rate(2, 0).with_argument("--ckpt", "y")
    assert [change.text() for change in again.changes] == ["lr: 1.00e+00 -> 5.00e-01", "ckpt: none -> y"]


def test_how_a_script_is_given_a_checkpoint_is_read_from_its_text(tmp_path):
    checkpoint = Path("out/checkpoint-5")
    unknown = recipe_of(tmp_path, text="import argparse").with_checkpoint(checkpoint)
    assert isinstance(unknown, NoRoom)
    assert "--resume-arg" in unknown.reason
    own = recipe_of(tmp_path, text="parser.add_argument('--resume-from-checkpoint')").with_checkpoint(checkpoint)
    assert behind(own.prepared(2)) == ["--resume-from-checkpoint", str(checkpoint)]
    fields = "HfArgumentParser(TrainingArguments)\ntrainer.train(resume_from_checkpoint=args.resume_from_checkpoint)"
    hugging = recipe_of(tmp_path, text=fields).with_checkpoint(checkpoint)
    assert behind(hugging.prepared(2)) == ["--resume_from_checkpoint", str(checkpoint)]
    assert isinstance(recipe_of(tmp_path, text="HfArgumentParser(X)").with_checkpoint(checkpoint), NoRoom)
    (tmp_path / "args.json").write_text("{}")
    alone = recipe_of(tmp_path, "{config}", config=Path("args.json"), text=fields)
    assert isinstance(alone.with_checkpoint(checkpoint), NoRoom), "beside a file of all arguments no flag is taken"
    asked = recipe_of(tmp_path, text=fields, resume_arg="--go-on").with_checkpoint(checkpoint)
    assert behind(asked.prepared(2)) == ["--go-on", str(checkpoint)]


def test_where_results_go_is_known_from_a_flag(tmp_path):
    assert recipe_of(tmp_path, "--output_dir", "out").output_folder() == tmp_path / "out"
    assert recipe_of(tmp_path, "--output-dir=/somewhere/else").output_folder() == Path("/somewhere/else")
    assert recipe_of(tmp_path, "--output_dir", "a", "--save_dir", "b").output_folder() is None
    assert recipe_of(tmp_path, "--output_dir").output_folder() is None
    assert recipe_of(tmp_path).output_folder() is None


def test_argparse_takes_what_is_written(tmp_path):
    text = (
        "import argparse; p = argparse.ArgumentParser(); p.add_argument('-lr', '--lr', type=float); "
        "p.add_argument('--batch-size', type=int); a = p.parse_args(); print(a.lr, a.batch_size)"
    )
    recipe = recipe_of(tmp_path, "-lr", "1e-5", "--batch-size=1_000", text=text)
    for _ in range(3):
        recipe = recipe.with_less_rate(1.5, 0).with_less_batch(1.5, 1)
    done = subprocess.run(recipe.prepared(4).argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.96297e-06", "296"]
