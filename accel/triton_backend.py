"""The model's stages with Triton kernels: the action expert of pi0 and pi0.5, and what other methods leave of FFNs."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from ..policies.model import FlowModel, KVContext, Ops, Stages
from ..policies.policy import Policy
from ..policies.seams import Method, Seam

if TYPE_CHECKING:
    from .fused import Fused


class Triton(Method):
    """Runs denoising steps as six kernels per layer, and the rows and neurons that other methods choose without copies.

    The arithmetic is dense, in another order: in float32 the actions differ from the dense policy's by some 1e-6 of
    their size, in bfloat16 by its rounding. Dense prefills and encoders stay PyTorch's.

    Raises:
        ValueError: On ``attach``: the policy is not on a CUDA device, the package ``triton`` is missing, or the model
            has another kind of action expert.
    """

    name = "triton"
    claims = frozenset({Seam.BACKEND})
    activity_counters = ("kernel_layers",)
    requires = KVContext

    def __init__(self) -> None:
        self._fused: Fused | None = None

    @classmethod
    def misfit(cls, model: type[FlowModel]) -> str | None:
        """An action expert whose layers do not come apart."""
        return None if hasattr(model, "enter") else "its kernels are those of the action expert of pi0 and pi0.5"

    def attach(self, policy: Policy) -> None:
        """Checks that kernels can run."""
        if not importlib.util.find_spec("triton"):
            raise ValueError("'triton' needs the package triton, which is not here: pip install 'replan[kernels]'")
        from ..kernels.launch import runs_on  # imports Triton, which only whoever uses it should

        if not runs_on(policy.model.device):
            raise ValueError(f"'triton' needs a CUDA device, and the policy is on {policy.model.device}: --device cuda")

    def stages(self, model: FlowModel, prefill_ops: Ops, step_ops: Ops) -> Stages:
        """Replaces prefill and step, and how a draft is judged."""
        from ..kernels.accept import accept
        from .fused import Fused

        self._fused = Fused(model)
        return model.stages()._replace(prefill=self._fused.prefill, step=self._fused.step, decide=accept)

    def begin(self) -> None:
        """Zeroes the counter."""
        if self._fused is not None:
            self._fused.layers = 0

    def counters(self) -> dict[str, float]:
        """Layers that ran as kernels, or whose FFN did."""
        return {"kernel_layers": 0 if self._fused is None else self._fused.layers}
