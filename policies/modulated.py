"""Modules whose layers are modulated by the flow time: what a time makes of them is kept until the weights change."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, Union

import torch
from torch import Tensor, nn

T = TypeVar("T")

Times = Union[Tensor, float, "tuple[float, ...]"]
"""A flow time, or one for each of [B] rows. Tuples are for times that come again, such as those of a verification."""

_KEPT = 64
"""Flow times that are kept: 10 of a dense schedule and those of methods. At full size one of pi0.5 takes 0.5 MB."""


class Modulated(nn.Module, Generic[T]):
    """Keeps, in evaluation mode without gradients, the modulations of a flow time from round to round.

    ``load_state_dict``, ``to`` and ``train`` forget them; do not write into parameters between rounds. A subclass says
    in ``_modulations`` what the modulations of times are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._at_times: dict[float | tuple[float, ...], T] = {}
        self.register_load_state_dict_pre_hook(_forget)

    def modulations(self, time: Times) -> T:
        """Returns what a flow time, or each of [B] times, makes of the layers.

        Those of numbers are kept; those of a tensor are not, since reading it would wait for the device.
        """
        device = next(self.parameters()).device
        if isinstance(time, Tensor) or self.training or torch.is_grad_enabled():
            return self._modulations(torch.as_tensor(time, dtype=torch.float32, device=device).reshape(-1))
        if time not in self._at_times:
            if len(self._at_times) == _KEPT:
                del self._at_times[next(iter(self._at_times))]
            self._at_times[time] = self._modulations(torch.tensor(time, dtype=torch.float32, device=device).reshape(-1))
        return self._at_times[time]

    def forget(self) -> None:
        """Forgets what was computed with weights that are about to change."""
        self._at_times.clear()

    def train(self, mode: bool = True) -> Modulated[T]:
        """See ``nn.Module``."""
        self.forget()
        return super().train(mode)

    def _apply(self, *args: Any, **options: Any) -> Modulated[T]:  # to another device or precision
        self.forget()
        return super()._apply(*args, **options)

    def _modulations(self, times: Tensor) -> T:
        """Computes the modulations of times [B], float32."""
        raise NotImplementedError


def _forget(module: Modulated[Any], *_: Any) -> None:
    """Forgets for the module that is loaded, which may be a copy of the one that the hook was registered on."""
    module.forget()
