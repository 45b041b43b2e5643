"""An FFN as its neurons see it: what methods may compute of it in part, and a backend may run in another way."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class NeuronFFN(nn.Module):
    """An FFN with a layer of neurons, of which each can be computed alone.

    What ``incoming`` and ``outgoing`` return is opaque to methods: a part of the weights here, and in a backend
    what its kernels need to find that part.

    Attributes:
        down: From the neurons to the output.
    """

    down: nn.Linear

    def incoming(self, neurons: Tensor) -> Any:
        """Returns what ``hidden`` needs to compute these neurons [K] alone."""
        raise NotImplementedError

    def outgoing(self, by_neuron: Tensor, neurons: Tensor) -> Any:
        """Returns what ``changed`` needs of these neurons [K].

        Args:
            by_neuron: [hidden, width] the weights of ``down``, a neuron's side by side.
            neurons: [K] indices.
        """
        return by_neuron.index_select(0, neurons)

    def hidden(self, x: Tensor, incoming: Any = None) -> Tensor:
        """Returns the activation [.., hidden], or [.., K] of the neurons of ``incoming``."""
        raise NotImplementedError

    def changed(self, out: Tensor, before: Tensor, hidden: Tensor, outgoing: Any) -> Tensor:
        """Returns an output [.., width] after its neurons ``outgoing`` have changed from before to hidden [.., K]."""
        return out + (hidden - before) @ outgoing

    def write(self, out: Tensor, x: Tensor, rows: Tensor) -> None:
        """Writes the outputs of the rows [R] of x [B, T, width] into the same rows of ``out``."""
        out[:, rows] = self(x[:, rows])

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] -> [.., width]."""
        return self.down(self.hidden(x))
