"""Denoising steps as kernels, and FFNs whose chosen rows and neurons are read where they lie.

A layer of a step is six launches (projection, two of attention, its output, gate, down) instead of some 25. What a flow
time makes of a norm is folded into the product behind it, once per time.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels import attention, geglu, project, qkv
from ..kernels.launch import FEW
from ..kernels.norm import EPSILON, FoldedNorm
from ..policies.gemma import GeGLU, Parts, Rope, rope_table
from ..policies.model import DENSE, KVContext, Ops, Prefix
from ..policies.modulated import Times
from ..policies.neurons import NeuronFFN
from ..policies.paligemma import behind

_TABLES = 64
"""Flow times whose tables are kept, as :class:`~replan.policies.modulated.Modulated` keeps its own."""

Norm = tuple[Tensor, "Tensor | None", "Tensor | None"]
"""Scale, shift and gate, as in :class:`~replan.policies.gemma.Parts`."""


class Fused:
    """Prefill and step of a pi0 or a pi0.5.

    Args:
        model: The shared model, whose weights must not change any more.

    Attributes:
        layers: Layers that ran as kernels, or whose FFN did.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._ffns: dict[nn.Module, KernelFFN] = {}
        self._tables: dict[int, tuple[Tensor, FoldedNorm, Tensor | None]] = {}
        self._scratch: dict[tuple[int, int], project.Scratch] = {}
        self.layers = 0

    def prefill(self, prefix: Prefix, ops: Ops) -> KVContext:
        """Runs the VLM; dense products of hundreds of rows are left to cuBLAS."""
        return self._model.prefill(prefix, ops if ops is DENSE else _WithKernels(ops, self))

    def step(self, x: Tensor, time: Times, context: KVContext, ops: Ops) -> Tensor:
        """Evaluates the velocity field; where ops have answers of their own, only the FFN runs as kernels."""
        if ops is not DENSE:
            return self._model.step(x, time, context, _WithKernels(ops, self))
        hidden, stack, leave = self._model.enter(x, time)
        rope = rope_table(behind(context, hidden.shape[1]), self._model.config.head_dim, hidden.dtype)
        for number, layer in enumerate(stack):
            hidden = self._layer(layer.parts(), hidden, rope, context, number, keep=not isinstance(time, Tensor))
        self.layers += len(stack)
        return leave(hidden)

    def _layer(self, parts: Parts, x: Tensor, rope: Rope, context: KVContext, number: int, keep: bool) -> Tensor:
        """Returns the output [B, T, D] of a layer; ``keep`` says that its norms come again, as the same tensors."""
        layer, (by_attention, by_ffn) = parts
        source, norm, gate = self._norm(x, by_attention, layer.qkv.weight, keep)
        into = qkv.Rotated.of(x, layer.heads, layer.head_dim)
        q, k, v = qkv.qkv(source, layer.qkv.weight, norm, rope, into)
        past = context.keys[number], context.values[number]
        mixed = attention.attention(q, past, (k, v), context.mask).flatten(2)
        x = self._add(x, mixed, layer.out, gate)
        source, norm, gate = self._norm(x, by_ffn, layer.ffn.gate_up.weight, keep)
        return self._add(x, geglu.geglu(source, layer.ffn.gate_up.weight, norm), layer.ffn.down, gate)

    def _add(self, x: Tensor, h: Tensor, linear: nn.Linear, gate: Tensor | None) -> Tensor:
        """Returns x [B, T, D] and the gated product of h."""
        size = x.shape[0] * x.shape[1], x.shape[2]
        if size not in self._scratch:
            self._scratch[size] = project.Scratch.of(*size, x.device)
        return project.project(h, linear.weight.T, residual=x, gate=gate, scratch=self._scratch[size])

    def _norm(
        self, x: Tensor, norm: Norm, weight: Tensor, keep: bool
    ) -> tuple[Tensor, FoldedNorm | None, Tensor | None]:
        """Returns the input of a product with what is left of its norm to do, and the gate [1 or B, D] behind it.

        A norm that does not come again is not folded: the product of its shift would read all weights once more.
        """
        scale, shift, gate = norm
        if not keep and shift is not None:
            wide = F.rms_norm(x.float(), x.shape[-1:], None, EPSILON) * (1.0 + scale.float()) + shift.float()
            return wide.to(x.dtype), None, _rows(gate)
        if id(scale) not in self._tables:
            if len(self._tables) >= _TABLES * 2 * self._model.config.depth:
                self._tables.clear()
            folded = FoldedNorm.of(1.0 + scale.float().reshape(-1, x.shape[-1]), _rows(shift), weight)
            self._tables[id(scale)] = scale, folded, _rows(gate)  # scale is kept, so that its id stays its own
        _, folded, gate = self._tables[id(scale)]
        return x, folded, gate

    def ffn(self, ffn: Any) -> KernelFFN:
        """Returns an FFN of the model as kernels."""
        if ffn not in self._ffns:
            self._ffns[ffn] = KernelFFN(ffn)
        return self._ffns[ffn]


def _rows(table: Tensor | None) -> Tensor | None:
    """[B, 1, D] or None -> [B, D] or None, contiguous."""
    return None if table is None else table.flatten(0, 1).contiguous()


class KernelFFN(NeuronFFN):
    """A gated FFN whose rows and neurons are read where they lie.

    Args:
        ffn: The model's, whose weights it shares.
    """

    def __init__(self, ffn: GeGLU) -> None:
        super().__init__()
        self.gate_up, self.down, self._dense = ffn.gate_up, ffn.down, ffn

    def incoming(self, neurons: Tensor) -> Tensor:
        """The neurons themselves: nothing is packed."""
        return neurons

    def outgoing(self, by_neuron: Tensor, neurons: Tensor) -> tuple[Tensor, Tensor]:
        """Likewise."""
        return by_neuron, neurons

    def hidden(self, x: Tensor, incoming: Tensor | None = None) -> Tensor:
        """See :meth:`NeuronFFN.hidden`."""
        return geglu.geglu(x.contiguous(), self.gate_up.weight, neurons=incoming)

    def changed(self, out: Tensor, before: Tensor, hidden: Tensor, outgoing: tuple[Tensor, Tensor]) -> Tensor:
        """See :meth:`NeuronFFN.changed`."""
        by_neuron, neurons = outgoing
        return project.project(hidden, by_neuron, neurons, project.Anchor(before.contiguous(), out))

    def write(self, out: Tensor, x: Tensor, rows: Tensor) -> None:
        """See :meth:`NeuronFFN.write`."""
        hidden = geglu.geglu(x.contiguous(), self.gate_up.weight, rows=rows)
        project.project(hidden, self.down.weight.T, rows=rows, out=out)

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] -> [.., width]; many rows are left to cuBLAS."""
        if x.numel() > FEW * x.shape[-1]:
            return self._dense(x)
        return project.project(self.hidden(x), self.down.weight.T)


class _WithKernels(Ops):
    """Another method's ops, whose FFNs are kernels."""

    def __init__(self, inner: Ops, fused: Fused) -> None:
        self._inner, self._fused = inner, fused
        self.rows, self.keys_values = inner.rows, inner.keys_values
        self.scatter, self.attended = inner.scatter, inner.attended

    def ffn(self, layer: int, x: Tensor, ffn: nn.Module, rows: Tensor | None) -> Tensor:
        self._fused.layers += 1
        return self._inner.ffn(layer, x, self._fused.ffn(ffn), rows)
