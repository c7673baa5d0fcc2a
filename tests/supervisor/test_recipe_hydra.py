"""Hydra's form, against Hydra itself: what is read is what it composes, and what is built is what it takes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from self_healing.core.errors import ConfigError
from self_healing.supervisor.recipe import Launch, NoRoom, Recipe, Role, read_recipe
from self_healing.supervisor.settings import RunSettings

from .recipes import names, open_folder, value, without_rights  # noqa: F401  # a fixture

hydra = pytest.importorskip("hydra")
from omegaconf import OmegaConf  # noqa: E402  # it comes with Hydra

SCRIPT = """\
import json
import hydra
from omegaconf import OmegaConf

@hydra.main(version_base=None, config_path=None, config_name="other")
def main(config):
    print(json.dumps(OmegaConf.to_container(config, resolve=True)))

main()
"""
CONFIG = """\
# The seed's own.
training:
  learning_rate: 2e-4  # tuned
  meta_batch_size: 32
pool: {size: 4096}
schedule:
  constant_product: 500
"""
GROUPS = {
    "config.yaml": "defaults:\n- training: base\n- model: mlp\n- _self_\nseed: 1\n",
    "training/base.yaml": "learning_rate: 3e-4\nbatch_size: 32\n",
    "training/fast.yaml": "defaults: [base, _self_]\nbatch_size: 8\n",
    "model/mlp.yaml": "width: 4\n",
    "model/gnn.yaml": "# @package _global_\nmodel: {width: 8}\ntraining: {learning_rate: 6e-4}\n",
    "experiment/small.yaml": "# @package _global_\ndefaults:\n- override /training: fast\ntraining: {learning_rate: 9e-4}\n",
}


def lay_out(folder: Path, files: dict[str, str], script: str = "train.py") -> None:
    for name, text in files.items():
        path = folder / "configs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (folder / script).parent.mkdir(parents=True, exist_ok=True)
    (folder / script).write_text(SCRIPT)


def recipe_in(folder: Path, *overrides: str, **settings) -> Recipe:
    return read_recipe(RunSettings(overrides=overrides, **settings), folder)


def composed(launch: Launch, folder: Path) -> dict:
    """Return what Hydra makes of a launch's arguments, in this process."""
    _, _, _, root, _, name, *overrides = launch.argv
    with hydra.initialize_config_dir(root, version_base=None):
        return OmegaConf.to_container(hydra.compose(name, overrides), resolve=True)


def run(launch: Launch, folder: Path) -> dict:
    """Return what a script of Hydra's is given by a launch."""
    extra = [f"hydra.run.dir={folder / 'out'}", "hydra.output_subdir=null"]
    environ = {**os.environ, **launch.environ}
    done = subprocess.run([*launch.argv, *extra], cwd=folder, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_seeds_form_is_what_hydra_takes(tmp_path):
    lay_out(tmp_path, {"config.yaml": CONFIG})
    recipe = recipe_in(tmp_path)
    first = recipe.prepared(1)
    assert first.argv == [sys.executable, "train.py", "--config-path", f"{tmp_path}/configs", "--config-name", "config"]
    assert run(first, tmp_path)["training"] == {"learning_rate": 2e-4, "meta_batch_size": 32}
    lower = recipe.with_less_rate(1.5, 1e-6)
    second = lower.prepared(2)
    assert str(second.config).startswith("configs/config_retry_1_")
    assert run(second, tmp_path)["training"] == {"learning_rate": 1.33333e-4, "meta_batch_size": 32}
    third = run(lower.with_less_batch(1.5, 1).prepared(3), tmp_path)
    assert third["training"] == {"learning_rate": 1.33333e-4, "meta_batch_size": 21}
    assert third["schedule"] == {"constant_product": 333}
    assert recipe.clean_up() == ()
    assert names(tmp_path / "configs") == ["config.yaml"]
    assert (tmp_path / "configs/config.yaml").read_text() == CONFIG


@pytest.mark.parametrize("form", ["{}", "+{}", "++{}"])
def test_an_override_of_the_user_is_changed_where_it_stands(tmp_path, form):
    lay_out(tmp_path, {"config.yaml": CONFIG if form != "+{}" else "training: {meta_batch_size: 32}"})
    given = form.format("training.learning_rate=3e-3")
    recipe = recipe_in(tmp_path, "pool.size=7" if form != "+{}" else "+x=1", given)
    launch = recipe.with_less_rate(1.5, 0).prepared(2)
    assert launch.argv[-1] == form.format("training.learning_rate=2.0e-03")
    assert launch.temporary == ()
    assert composed(launch, tmp_path)["training"] == {"learning_rate": 2e-3, "meta_batch_size": 32}


def test_a_change_in_the_file_and_one_in_an_override_go_together(tmp_path):
    lay_out(tmp_path, {"config.yaml": CONFIG})
    recipe = recipe_in(tmp_path, "training.meta_batch_size=16").with_less_rate(1.5, 0).with_less_batch(1.5, 1)
    launch = recipe.prepared(2)
    assert launch.argv[-1] == "training.meta_batch_size=10"
    assert composed(launch, tmp_path)["training"] == {"learning_rate": 1.33333e-4, "meta_batch_size": 10}
    recipe.clean_up()


@pytest.mark.parametrize(
    ("overrides", "rate", "batch"),
    [
        ((), 3e-4, 32),
        (("training=fast",), 3e-4, 8),
        (("model=gnn",), 6e-4, 32),
        (("+experiment=small",), 9e-4, 8),
        (("+experiment=small", "training=base"), 9e-4, 32),
        (("training.learning_rate=0.3", "model=gnn"), 0.3, 32),
        (("~model",), 3e-4, 32),
    ],
)
def test_values_of_group_files_are_found_and_changed_by_overrides(tmp_path, overrides, rate, batch):
    lay_out(tmp_path, GROUPS)
    recipe = recipe_in(tmp_path, *overrides)
    theirs = composed(recipe.prepared(1), tmp_path)["training"]
    assert (value(recipe, Role.RATE), value(recipe, Role.BATCH)) == (rate, batch)
    assert (theirs["learning_rate"], theirs["batch_size"]) == (rate, batch)
    launch = recipe.with_less_rate(1.5, 0).with_less_batch(2, 1).prepared(2)
    theirs = composed(launch, tmp_path)["training"]
    assert (theirs["learning_rate"], theirs["batch_size"]) == (pytest.approx(rate / 1.5), batch // 2)
    assert launch.temporary == ()


@pytest.mark.parametrize(
    "primary",
    [
        "defaults: [training: base]\ntraining: {learning_rate: 1e-3}\n",
        "defaults: [_self_, training: base]\ntraining: {learning_rate: 1e-3}\n",
        "defaults: [training: base, _self_]\ntraining: {learning_rate: 1e-3}\n",
        "defaults: [training@opt: base]\n",
        "defaults: [training@_global_: base]\n",
        "defaults:\n- optional training: base\n- optional gone: x\n",
        "defaults: [training: [base]]\n",
        "defaults: [/training: base]\n",
        "defaults: [training/base]\n",
        "defaults: [training/base@opt]\n",
        "defaults: [nested: outer]\n",
        "defaults: [nested@opt: outer]\n",
        "defaults: [nested: absolute]\n",
        "defaults: [other]\n",
        "defaults: [training: fast, override training: base]\n",
        "defaults: [training: header]\n",
        "defaults: [training@opt: header]\n",
        "# @package _global_\ntraining: {learning_rate: 1e-3}\n",
        "base_rate: 7e-4\nopt: {lr: '${base_rate}'}\n",
        "defaults: [training: base]\nopt: {lr: '${training.learning_rate}'}\n",
    ],
)
def test_what_is_read_of_a_defaults_list_is_what_hydra_composes(tmp_path, primary):
    more = {
        "other.yaml": "learning_rate: 5e-4\n",
        "nested/outer.yaml": "defaults: [inner: one]\nx: 1\n",
        "nested/absolute.yaml": "defaults: [/training: base]\nx: 1\n",
        "nested/inner/one.yaml": "lr: 5e-4\n",
        "training/header.yaml": "# @package here.and.there\nlr: 8e-4\n",
    }
    lay_out(tmp_path, {**GROUPS, **more, "config.yaml": primary})
    recipe = recipe_in(tmp_path)

    def rates(config: dict, path: str = "") -> dict[str, float]:
        found = {}
        for key, inner in config.items():
            where = f"{path}.{key}".lstrip(".")
            found |= (
                rates(inner, where)
                if isinstance(inner, dict)
                else {where: inner}
                if key in ("lr", "learning_rate")
                else {}
            )
        return found

    theirs = rates(composed(recipe.prepared(1), tmp_path))
    (setting,) = recipe.settings(Role.RATE)
    assert theirs[setting.key] == setting.value
    launch = recipe.with_less_rate(2, 0).prepared(2)
    assert rates(composed(launch, tmp_path)) == {key: pytest.approx(rate / 2, 1e-5) for key, rate in theirs.items()}
    recipe.clean_up()
    assert names(tmp_path / "configs") == ["config.yaml", "experiment", "model", "nested", "other.yaml", "training"]


def test_two_rates_of_one_composition_are_a_question(tmp_path):
    lay_out(tmp_path, {**GROUPS, "model/mlp.yaml": "lr: 1e-2\n"})
    with pytest.raises(
        ConfigError, match=r"training\.learning_rate \(configs/training/base\.yaml, line 1\) and model\.lr"
    ):
        recipe_in(tmp_path)
    assert value(recipe_in(tmp_path, "~model"), Role.RATE) == 3e-4, "what is taken out counts no longer"
    lower = recipe_in(tmp_path, lr_key="model.lr").with_less_rate(2, 0)
    assert composed(lower.prepared(2), tmp_path)["model"] == {"lr": 5e-3}


def test_in_a_folder_that_takes_no_files_overrides_say_the_same(open_folder):  # noqa: F811
    lay_out(open_folder, {"config.yaml": CONFIG})
    recipe = recipe_in(open_folder)
    (open_folder / "configs").chmod(0o555)
    with without_rights():
        launch = recipe.with_less_rate(1.5, 0).prepared(2)
    assert launch.argv[-1] == "training.learning_rate=1.33333e-04"
    assert launch.config == Path("configs/config.yaml")
    assert launch.temporary == ()
    assert composed(launch, open_folder)["training"]["learning_rate"] == 1.33333e-4
    (open_folder / "configs").chmod(0o755)


def test_a_folder_of_configs_is_found_beside_the_script_too(tmp_path):
    lay_out(tmp_path / "src", {"exp/deep.yaml": CONFIG}, "train.py")
    recipe = recipe_in(tmp_path, train_script="src/train.py", config_name="exp/deep.yaml")
    launch = recipe.with_less_rate(1.5, 0).prepared(2)
    assert launch.config.parent == Path("src/configs/exp")
    assert launch.argv[5] == f"exp/{launch.config.stem}"
    assert run(launch, tmp_path)["exp"]["training"]["learning_rate"] == 1.33333e-4
    assert recipe.settings(Role.RATE)[0].key == "exp.training.learning_rate"
    recipe.clean_up()
    (tmp_path / "src/configs/exp/deep.yaml").write_text("# @package _global_\n" + CONFIG)
    recipe = recipe_in(tmp_path, "training.learning_rate=0.5", train_script="src/train.py", config_name="exp/deep")
    assert run(recipe.with_less_rate(2, 0).prepared(2), tmp_path)["training"]["learning_rate"] == 0.25


def test_a_checkpoint_is_an_override(tmp_path):
    lay_out(tmp_path, {"config.yaml": CONFIG + "trainer: {resume_from_checkpoint: null}\n"})
    for path in (
        "out/checkpoint-5",
        "out/epoch=1-step=2.ckpt",
        "it's, a {path} [x]",
        "back\\slash, \\'quotes' and \\\\",
        "a:b c",
    ):
        launch = recipe_in(tmp_path).with_checkpoint(Path(path)).prepared(2)
        assert launch.temporary == ()
        assert composed(launch, tmp_path)["trainer"]["resume_from_checkpoint"] == path
        launch = recipe_in(tmp_path, resume_arg="ckpt_path").with_checkpoint(Path(path)).prepared(2)
        assert composed(launch, tmp_path)["ckpt_path"] == path
        given = recipe_in(tmp_path, "trainer.resume_from_checkpoint='old one'", "+ckpt=x", resume_arg="+ckpt")
        assert composed(given.with_checkpoint(Path(path)).prepared(2), tmp_path)["ckpt"] == path
        quoted = given.with_argument("trainer.resume_from_checkpoint", path).prepared(2)
        assert composed(quoted, tmp_path)["trainer"]["resume_from_checkpoint"] == path


def test_a_sweep_is_refused_only_where_it_would_be_changed(tmp_path):
    lay_out(tmp_path, {"config.yaml": CONFIG})
    with pytest.raises(
        ConfigError, match=r"^training\.learning_rate \(on the command line\) = 1e-3,1e-4 asks for a sweep"
    ):
        recipe_in(tmp_path, "training.learning_rate=1e-3,1e-4")
    recipe_in(tmp_path, "-m", "pool.size=1,2")


def test_where_results_go_is_hydras_own_folder_where_an_override_names_it(tmp_path):
    lay_out(tmp_path, {"config.yaml": CONFIG})
    assert recipe_in(tmp_path, "hydra.run.dir=out/here").output_folder() == tmp_path / "out/here"
    assert recipe_in(tmp_path, "hydra.run.dir=out/${now:%H}").output_folder() is None
    assert recipe_in(tmp_path).output_folder() is None


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(
        ConfigError, match=r"^train\.py: there is no such script; name it with --train-script, or write a"
    ):
        recipe_in(tmp_path)
    (tmp_path / "train.py").touch()
    with pytest.raises(
        ConfigError, match=r"^configs: there is no such folder; name the folder of configs with --config"
    ):
        recipe_in(tmp_path)
    lay_out(tmp_path, {"other.yml": ""})
    with pytest.raises(ConfigError, match=r"^configs/config\.yaml: there is no such config file$"):
        recipe_in(tmp_path)
    with pytest.raises(
        ConfigError, match=r"^configs/other\.yml: Hydra reads only files that end with \.yaml; rename it$"
    ):
        recipe_in(tmp_path, config_name="other")
    lay_out(tmp_path, {**GROUPS, "training/base.yaml": "a: [1"})
    with pytest.raises(ConfigError, match=r"^configs/training/base\.yaml:1: is not valid YAML: "):
        recipe_in(tmp_path)
    with pytest.raises(ConfigError, match=r"^--config x\.yaml: needs a command that takes it"):
        recipe_in(tmp_path, config=Path("x.yaml"))
    lay_out(tmp_path, {"config.yaml": CONFIG})
    with pytest.raises(ConfigError, match=r"^--lr-key peak: there is no such key in the overrides and configs/config"):
        recipe_in(tmp_path, lr_key="peak")
    answer = recipe_in(tmp_path, "~training").with_fewer_workers()
    assert isinstance(answer, NoRoom)
