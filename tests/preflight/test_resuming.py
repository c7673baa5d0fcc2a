"""Runs that resume: the checkpoint is found as the trainer finds it, and fits the run."""

from __future__ import annotations

import json
import zipfile

import pytest

from self_healing.preflight.finding import Severity
from self_healing.preflight.options import CheckOptions
from self_healing.preflight.runner import run_checks
from self_healing.preflight.subject import read_subject
from self_healing.preflight.surroundings.machine import Machine
from self_healing.preflight.tools import Tools
from self_healing.snapshots.manifest import describe, withdraw, write_manifest
from self_healing.snapshots.verdicts import Condition, StateVerdict

SCRIPT = "import os\nfrom transformers.trainer_utils import get_last_checkpoint\nfrom trl import *\nt = SFTTrainer({model}, args=SFTConfig({args}))\n{train}\n"


def checked(
    folder, train="t.train(resume_from_checkpoint=True)", *, args="'o'", model="'m'", argv=(), gpus=(), **options
):
    """Check a script, or a command that runs it, in a folder that is also the home."""
    (folder / "train.py").write_text(SCRIPT.format(model=model, args=args, train=train))
    given = CheckOptions(offline=True, select=("resume-from-nothing", "unfit-checkpoint"), **options)
    subject = read_subject([] if argv else ["train.py"], list(argv), given, folder)
    machine = Machine({"gpus": list(gpus)})
    return run_checks(
        subject, Tools(options=given, environ={"HOME": str(folder / "home")}, cwd=folder, machine=machine)
    )


def said(report):
    assert report.not_run == []
    return [f"{each.check} {each.severity}: {each.message} {each.fix}" for each in report.findings]


def saved(folder, *, step=5, without=(), ranks=0, more=(), config=None, **state):
    """Write a checkpoint as transformers does, with files that are as small as can be."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    names = [f"rng_state_{rank}.pth" for rank in range(ranks)] or ["rng_state.pth"]
    for name in {"optimizer.pt", "scheduler.pt", *names} - set(without):
        with zipfile.ZipFile(path / name, "w") as archive:
            archive.writestr("archive/data.pkl", b"")
    (path / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": step, "train_batch_size": 8, **state}))
    for name in more:
        (path / name).mkdir()
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_tilde_in_the_output_folder_is_the_home_as_it_is_for_the_trainer(tmp_path):
    assert "no checkpoint in ~/o" in said(checked(tmp_path, args="'~/o'"))[0]
    saved(tmp_path / "home" / "o", without=["optimizer.pt"])
    (found,) = said(checked(tmp_path, args="'~/o'"))
    assert "optimizer.pt is missing" in found


def test_a_tilde_in_the_checkpoint_is_none_for_the_trainer_and_the_finding_says_so(tmp_path):
    path = saved(tmp_path / "home" / "o")
    (found,) = said(checked(tmp_path, "t.train('~/o/checkpoint-5')"))
    assert "the trainer does not know `~`" in found
    assert str(path) in found
    assert "which is not here" in said(checked(tmp_path, "t.train('~/o/checkpoint-6')"))[0]


def test_a_path_that_the_script_expands_is_not_spoken_of(tmp_path):
    saved(tmp_path / "home" / "o")
    assert said(checked(tmp_path, "t.train(os.path.expanduser('~/o/checkpoint-5'))")) == []


def test_the_newest_checkpoint_is_the_one_with_the_highest_number(tmp_path):
    saved(tmp_path / "o", step=90, without=["scheduler.pt"])
    saved(tmp_path / "o", step=100)
    (tmp_path / "o" / "checkpoint-best").mkdir()
    (tmp_path / "o" / "checkpoint-900").write_text("no folder")
    assert said(checked(tmp_path)) == []
    saved(tmp_path / "o", step=101, without=["scheduler.pt"])
    assert "checkpoint-101: scheduler.pt is missing" in said(checked(tmp_path))[0]


@pytest.mark.parametrize(
    "train",
    [
        "t.train(resume_from_checkpoint=get_last_checkpoint('o'))",
        "last = get_last_checkpoint('o')\nt.train(resume_from_checkpoint=last)",
        "t.train(resume_from_checkpoint=get_last_checkpoint(t.args.output_dir))",
    ],
)
def test_what_takes_the_newest_where_there_is_one_is_looked_at_where_there_is_one(tmp_path, train):
    assert said(checked(tmp_path, train)) == []
    saved(tmp_path / "o", without=["optimizer.pt"])
    (found,) = said(checked(tmp_path, train))
    assert "unfit-checkpoint warning" in found


@pytest.mark.parametrize(
    "train",
    [
        "t.train()",
        "t.train(resume_from_checkpoint=chosen())",
        "if os.environ.get('AGAIN'):\n    t.train(resume_from_checkpoint=True)",
        "from self_healing import SelfHealingTrainer\nSelfHealingTrainer(t).train(resume_from_checkpoint='auto')",
    ],
)
def test_a_checkpoint_that_may_not_be_resumed_from_is_not_looked_at(tmp_path, train):
    saved(tmp_path / "o", without=["optimizer.pt", "scheduler.pt"])
    assert said(checked(tmp_path, train)) == []


def test_a_flag_that_the_script_hands_on_is_looked_up(tmp_path):
    parser = "from transformers import HfArgumentParser, TrainingArguments, Trainer\n(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()\n"
    (tmp_path / "t.py").write_text(
        parser + "Trainer(m, args).train(resume_from_checkpoint=args.resume_from_checkpoint)\n"
    )
    argv = ["python", "t.py", "--output_dir", "o", "--resume_from_checkpoint", "o/checkpoint-5"]
    assert "which is not here" in said(checked(tmp_path, argv=argv))[0]
    saved(tmp_path / "o", without=["optimizer.pt"])
    assert "optimizer.pt is missing" in said(checked(tmp_path, argv=argv))[0]


def test_what_damages_a_checkpoint_is_an_error_and_what_begins_anew_a_warning(tmp_path):
    path = saved(tmp_path / "o")
    (path / "optimizer.pt").write_bytes(b"half of i")
    assert [each.severity for each in checked(tmp_path).findings] == [Severity.ERROR]
    (path / "optimizer.pt").unlink()
    assert [each.severity for each in checked(tmp_path).findings] == [Severity.WARNING]
    (found,) = said(checked(tmp_path, args="'o', save_only_model=True"))
    assert found.startswith("resume-from-nothing"), "told once"


def test_the_batch_of_one_process_may_be_that_of_all_its_gpus(tmp_path):
    saved(tmp_path / "o", train_batch_size=16)
    assert said(checked(tmp_path, gpus=["a", "b"])) == []
    assert "a batch of 16, and here it is 8" in said(checked(tmp_path, gpus=["a"]))[0]
    assert said(checked(tmp_path, gpus=["a"], gpu="h100")) == [], "it is for another machine"
    args = "'o', per_device_train_batch_size=16"
    assert said(checked(tmp_path, args=args, gpus=["a"])) == []
    assert said(checked(tmp_path, args="'o', auto_find_batch_size=True")) == []


def test_one_process_for_each_gpu_has_the_batch_of_one(tmp_path):
    saved(tmp_path / "o", train_batch_size=16, ranks=2)
    assert "a batch of 16, and here it is 8" in said(checked(tmp_path, gpus=["a", "b"]))[0]


def test_the_number_of_processes_is_compared_where_it_is_known(tmp_path):
    saved(tmp_path / "o", ranks=4)
    run = ["torchrun", "--nproc_per_node", "{}", "train.py"]
    assert said(checked(tmp_path)) == []
    assert said(checked(tmp_path, argv=[each.format(4) for each in run])) == []
    (found,) = said(checked(tmp_path, argv=[each.format(2) for each in run]))
    assert "written by 4 processes, and 2 processes will read it" in found
    assert "written by 4 processes, and one process" in said(checked(tmp_path, argv=["python", "train.py"]))[0]


def test_deepspeed_cannot_be_resumed_by_another_number_of_processes(tmp_path):
    path = saved(tmp_path / "o", ranks=4, more=["global_step5"])
    (path / "latest").write_text("global_step5")
    (path / "global_step5" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_text("x")
    report = checked(tmp_path, argv=["torchrun", "--nproc_per_node", "2", "train.py"])
    assert [(each.severity, "DeepSpeed" in each.message) for each in report.findings] == [(Severity.ERROR, True)]


def test_a_run_that_has_all_its_steps_or_epochs_behind_it_trains_nothing(tmp_path):
    saved(tmp_path / "o", step=100, epoch=2.0)
    for args, count in {
        "'o', max_steps=100": 1, "'o', max_steps=101": 0, "'o', num_train_epochs=2": 1, "'o', num_train_epochs=3": 0,
        "'o', max_steps=200, num_train_epochs=1": 0, "'o', max_steps=n, num_train_epochs=1": 0,
    }.items():  # fmt: skip
        report = checked(tmp_path, args=args)
        assert [("nothing is left" in each) for each in said(report)] == [True] * count, args


def test_the_sizes_of_a_model_in_a_folder_are_those_of_the_checkpoint(tmp_path):
    saved(tmp_path / "o", config={"hidden_size": 64, "vocab_size": 103})
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text(json.dumps({"hidden_size": 64, "vocab_size": 100}))
    model = "AutoModelForCausalLM.from_pretrained('./m')"
    assert "vocab_size 103, and ./m has 100" in said(checked(tmp_path, model=model))[0]
    grown = "t.model.resize_token_embeddings(103)\nt.train(resume_from_checkpoint=True)"
    assert said(checked(tmp_path, grown, model=model)) == []


def test_a_machine_with_a_disk_of_its_own_has_the_files_of_its_own_processes(tmp_path):
    saved(tmp_path / "o", ranks=4)
    run = ["torchrun", "--nnodes", "2", "--nproc_per_node", "{}", "train.py"]
    assert said(checked(tmp_path, argv=[each.format(4) for each in run])) == []
    assert "written by 4 processes, and 16" in said(checked(tmp_path, argv=[each.format(8) for each in run]))[0]


def test_an_adapter_is_looked_for_where_it_is_sure_that_the_run_has_none(tmp_path):
    path = saved(tmp_path / "o")
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps({"r": 4, "target_modules": ["q_proj"]}))
    load = "model = AutoModelForCausalLM.from_pretrained('Qwen/Qwen2.5-0.5B')\n"
    train = "{}Trainer(model, args=SFTConfig('o')).train(resume_from_checkpoint=True)"

    def told(*before):
        text = "from transformers import *\n" + load + "".join(f"{line}\n" for line in before)
        (tmp_path / "train.py").write_text(text + train.format("SFT"))
        options = CheckOptions(offline=True, select=("unfit-checkpoint",))
        tools = Tools(options=options, environ={}, cwd=tmp_path, machine=Machine({"gpus": []}))
        return said(run_checks(read_subject(["train.py"], [], options, tmp_path), tools))

    assert "holds an adapter, and the run trains the whole model" in told()[0]
    assert len(told("model.config.use_cache = False")) == 1
    assert told("model = prepared(model)") == told("prepare(model)") == []
    assert told("from peft import LoraConfig", "if small:", "    c = LoraConfig(r=8)") == []


def test_a_checkpoint_that_was_marked_sick_or_renamed_is_told_with_what_speaks_against_it(tmp_path):
    path = saved(tmp_path / "o")
    write_manifest(path, describe(path, StateVerdict(Condition.SICK, "the loss had diverged")))
    (found,) = said(checked(tmp_path))
    assert "unfit-checkpoint warning: checkpoint-5: it is marked sick: the loss had diverged" in found
    withdraw(path)
    path.rename(tmp_path / "o" / "checkpoint-7")
    (found,) = said(checked(tmp_path))
    assert "warning: checkpoint-7: trainer_state.json is of step 5" in found


def test_a_checkpoint_of_another_machine_is_not_looked_for(tmp_path):
    saved(tmp_path / "o", without=["optimizer.pt"])
    assert said(checked(tmp_path, argv=["ssh", "host", "python train.py"])) == []


def test_a_file_that_somebody_else_has_written_breaks_nothing(tmp_path):
    path = saved(tmp_path / "o")
    for text in ("[]", "{", '{"global_step": "x", "train_batch_size": null, "epoch": {}}', "[" * 100_000):
        (path / "trainer_state.json").write_text(text)
        assert {each.check for each in checked(tmp_path).findings} == {"unfit-checkpoint"}
