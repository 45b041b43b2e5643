"""What a flow time makes of a model is kept between rounds, and never outlives the weights it was computed with."""

from __future__ import annotations

import copy

import pytest
import torch
from replan.policies.modulated import Modulated


class Scaled(Modulated[torch.Tensor]):
    """Multiplies times by its weight, and counts how often."""

    def __init__(self):
        super().__init__()
        self.weight, self.computed = torch.nn.Parameter(torch.tensor([2.0])), 0

    def _modulations(self, times):
        self.computed += 1
        return times * self.weight


@pytest.fixture
def module():
    return Scaled().eval()


@torch.no_grad()
def test_those_of_numbers_are_computed_once_and_those_of_a_tensor_each_time(module):
    for _ in range(2):
        assert module.modulations(0.5).tolist() == [1.0]
        assert module.modulations((0.5, 1.0)).tolist() == [1.0, 2.0]
    assert module.computed == 2
    for time in (torch.tensor(0.5), torch.tensor([0.5])):
        assert module.modulations(time).tolist() == [1.0]
    assert module.modulations(torch.tensor([0.5, 1.0])).tolist() == [1.0, 2.0]
    assert module.computed == 5


def test_nothing_is_kept_where_weights_are_trained(module):
    assert module.modulations(0.5).requires_grad  # with gradients
    module.modulations(0.5)
    with torch.no_grad():
        assert module.train() is module and module.training
        module.modulations(0.5)
        module.modulations(0.5)
    assert module.computed == 4


@torch.no_grad()
@pytest.mark.parametrize("how", ["load", "load into a copy", "to", "train and back"])
def test_what_was_kept_is_forgotten_when_the_weights_may_change(module, how):
    module.modulations(0.5)
    if how == "load into a copy":
        module = copy.deepcopy(module)
    if how.startswith("load"):
        module.load_state_dict({"weight": torch.tensor([3.0])})
    elif how == "to":
        module.weight.fill_(3.0)
        module.to(torch.float32)
    else:
        module.train()
        module.weight.fill_(3.0)
        module.training = False  # eval() would forget, too
    assert module.modulations(0.5).tolist() == [1.5]


@torch.no_grad()
def test_the_oldest_of_65_times_is_dropped(module):
    times = [step / 100 for step in range(65)]
    for time in times:
        module.modulations(time)
    for time in times[1:]:
        module.modulations(time)
    assert module.computed == 65
    module.modulations(times[0])
    assert module.computed == 66
