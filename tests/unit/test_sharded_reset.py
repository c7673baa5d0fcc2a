"""What of FSDP2 is needed to put a model back after a failure, and what is said where it is not there."""

from __future__ import annotations

import pytest
import torch

from self_healing.adapters.ranks.sharded_reset import Reset, reset_after_failure, why_not_reset
from self_healing.core.errors import CapabilityMissing

pytestmark = pytest.mark.torch


@pytest.fixture
def sharded():
    if not torch.distributed.is_available():
        pytest.skip("torch without distributed")
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield fully_shard(torch.nn.Linear(3, 2))
    torch.distributed.destroy_process_group()


def test_a_model_that_is_not_sharded_only_loses_its_gradients():
    model = torch.nn.Linear(3, 2)
    model(torch.ones(1, 3)).sum().backward()
    assert why_not_reset(model) is None
    assert reset_after_failure(model, keep_gradients=True) == Reset()
    assert model.weight.grad is not None
    assert reset_after_failure(model) == Reset()
    assert model.weight.grad is None


def test_a_sharded_model_that_was_never_used_has_nothing_to_put_back(sharded):
    assert reset_after_failure(sharded) == Reset(modules=1)


@pytest.mark.parametrize("lacks", ["FSDPModule.reset_iter_state", "FSDPParamGroup.is_sharded"])
def test_a_torch_without_what_is_needed_is_named_with_what_it_lacks_and_nothing_is_touched(sharded, monkeypatch, lacks):
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

    sharded(torch.ones(1, 3)).sum().backward()
    owner, name = lacks.split(".")
    monkeypatch.delattr({"FSDPModule": FSDPModule, "FSDPParamGroup": FSDPParamGroup}[owner], name)
    with pytest.raises(CapabilityMissing, match=lacks):
        reset_after_failure(sharded)
    assert torch.__version__ in (why_not_reset(sharded) or "")
    assert sharded.weight.grad is not None
