"""Random numbers set aside and put back, alone and through files."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
np = pytest.importorskip("numpy")

from self_healing.tensors.random_state import RandomState, devices_of, draws_on  # noqa: E402


def draw():
    return (
        random.random(),
        random.gauss(),
        float(np.random.rand()),
        float(np.random.standard_normal()),
        torch.rand(3).tolist(),
        torch.nn.functional.dropout(torch.ones(8)).tolist(),
    )


def test_the_same_numbers_are_drawn_again():
    draw()
    state = RandomState.capture()
    first = draw()
    assert draw() != first
    state.restore()
    assert draw() == first
    state.restore()
    assert draw() == first, "a state can be restored more than once"


def test_half_a_pair_of_normal_numbers_is_kept():
    random.gauss(), np.random.standard_normal()
    state = RandomState.capture()
    first = random.gauss(), np.random.standard_normal()
    state.restore()
    assert (random.gauss(), np.random.standard_normal()) == first


def test_a_state_survives_a_file_of_tensors(tmp_path):
    state = RandomState.capture()
    torch.save(state.state_dict(), tmp_path / "rng.pt")
    first = draw()
    RandomState.from_state(torch.load(tmp_path / "rng.pt", weights_only=True)).restore()
    assert draw() == first


def test_a_state_survives_json():
    state = RandomState.capture()
    text = json.dumps(state.state_dict(), default=lambda tensor: tensor.tolist())
    first = draw()
    RandomState.from_state(json.loads(text)).restore()
    assert draw() == first


def test_what_was_captured_does_not_move_with_the_generators():
    state = RandomState.capture()
    saved = state.state_dict()
    draw()
    torch.manual_seed(123)
    assert torch.equal(saved["cpu"], state.cpu)
    saved["cpu"].zero_()
    assert state.cpu.any()


def test_neither_numpy_nor_cuda_is_woken():
    code = (
        "import sys, torch\n"
        "from self_healing.tensors.random_state import RandomState, draws_on\n"
        "for name in [name for name in sys.modules if name.split('.')[0] == 'numpy']: del sys.modules[name]\n"
        "draws_on([torch.device('cpu'), torch.device('cuda', 1)], RandomState)\n"
        "for devices in (None, ['cuda:0', 0]):\n"
        "    state = RandomState.capture(devices)\n"
        "    state.restore()\n"
        "    assert state.numpy is None and not state.devices\n"
        "assert not torch.cuda.is_initialized() and 'numpy.random' not in sys.modules\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_current_cuda_device_is_included():
    torch.rand(1, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        state = RandomState.capture()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert list(state.devices) == [f"cuda:{torch.cuda.current_device()}"]
    first = torch.rand(4, device="cuda").tolist()
    state.restore()
    assert torch.rand(4, device="cuda").tolist() == first
    RandomState.from_state(state.state_dict()).restore()
    assert torch.rand(4, device="cuda").tolist() == first


def test_the_devices_of_a_model_are_those_of_its_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    assert devices_of(model) == {torch.device("cpu"), torch.device("meta")}
    wrapped = torch.nn.DataParallel(torch.nn.Linear(2, 2))  # moves what it wraps to a GPU where there is one
    assert devices_of(wrapped) >= devices_of(wrapped.module)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_every_device_of_the_model_in_training_is_included():
    model = torch.nn.DataParallel(torch.nn.Dropout(0.5).cuda(), device_ids=[0, 1])
    draws_on(devices_of(model), model)
    try:
        state = RandomState.capture()
    finally:
        draws_on((), model)
    assert sorted(state.devices) == ["cuda:0", "cuda:1"]
    first = model(torch.ones(8, 64, device="cuda"))
    state.restore()
    assert torch.equal(model(torch.ones(8, 64, device="cuda")), first)


def test_whatever_numpy_has_drawn_its_state_is_the_newest():
    ways = [
        lambda: None,
        np.random.rand,
        np.random.standard_normal,
        lambda: np.random.standard_normal(3),
        lambda: np.random.seed(5),
        lambda: np.random.randint(0, 9, 700),
        lambda: start.restore(),  # noqa: PLW0108  # it is made below
    ]
    np.random.standard_normal()
    start = RandomState.capture()
    choice = random.Random(3)
    reused = 0
    last = None
    for _ in range(400):
        choice.choice(ways)()
        ours, theirs = RandomState.capture().numpy, np.random.get_state(legacy=False)
        assert (ours["state"]["key"] == theirs["state"]["key"]).all()
        assert (ours["state"]["pos"], ours["has_gauss"], ours["gauss"]) == (
            theirs["state"]["pos"], theirs["has_gauss"], theirs["gauss"],
        )  # fmt: skip
        reused += ours is last
        last = ours
    assert reused > 10, "otherwise nothing is saved"


def test_whatever_python_has_drawn_its_state_is_the_newest():
    ways = [
        lambda: None,
        random.random,
        random.gauss,
        lambda: random.shuffle(list(range(9))),
        lambda: random.seed(5),
        lambda: start.restore(),  # noqa: PLW0108  # it is made below
    ]
    random.gauss()
    start = last = RandomState.capture()
    choice = random.Random(3)
    reused = 0
    for _ in range(400):
        choice.choice(ways)()
        now = RandomState.capture()
        assert now.python == random.getstate()
        assert now.python == last.python or not now.is_same(last)
        reused += now.python is last.python
        last = now
    assert reused > 10, "otherwise nothing is saved"


def test_what_another_thread_draws_meanwhile_is_read_the_next_time():
    from self_healing.tensors.random_state import _PythonReader

    class Interrupted(_PythonReader):
        def _copy(self):
            state = super()._copy()
            random.random()  # as if another thread had come in between
            return state

    reader = Interrupted()
    before = reader.read()
    random.setstate(before)
    assert reader.read() is not before, "it is not known whether this was the state that was seen"
