"""NIRVANA as rMuscle compares with it: denoising resumes from where that of a similar earlier round had come to.

Agarwal, Mitra, Chakraborty, Karanam, Mukherjee, Saini: "Approximate Caching for Efficiently Serving Text-to-Image
Diffusion Models", NSDI 2024. Its adaptation to actions: rMuscle, arXiv 2609.19104, section 6.1.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import torch
from torch import Tensor

from ..policies.flow import FlowSpec
from ..policies.policy import Policy
from ..policies.round import Call, Start
from ..policies.seams import Method, Seam
from .library import Library, Pack
from .retrieval import Limits, Retrieval

GIVEN = {10: 5, 4: 1}
"""Steps taken over, by the policy's: rMuscle's of pi0.5, and of GR00T, where half of them costs success."""

MEMORY_MB = 100
"""For chunks that were denoised in part: some hundred bytes each."""


class Nirvana(Method):
    """Takes the first denoising steps over from the round of an earlier execution that is most like the present one.

    Encoding and prefill are dense. The reference's first steps lead from its own noise to a noisy chunk, and the
    round's steps go on from there. Without a reference the round is dense.

    Args:
        given: Steps to take over. 0 is exactly dense. None: rMuscle's 5 of ten and 1 of four, else half.
        library: Folder of the library; empty for the one next to the policy.
        similarity: Below it the episode goes on densely.
        width: Episodes among which is searched.
        ahead: Rounds that are prepared ahead in each, and states that are compared.
        rebuild_ms: Time that a prefill and the given steps are taken to need while the robot moves.

    Raises:
        ValueError: An option is out of range; on ``attach``, the policy takes no more steps than are given.
    """

    name = "nirvana"
    claims = frozenset({Seam.INIT})
    activity_counters = ("steps_given",)
    limit = "given=0"
    papers = ("2609.19104",)

    def __init__(
        self,
        given: int | None = None,
        library: str = "",
        similarity: float = 0.8,
        width: int = 4,
        ahead: int = 4,
        rebuild_ms: float = 50.0,
    ) -> None:
        if given is not None and given < 0:
            raise ValueError(f"nirvana takes 0 or more steps over, got {given}")
        self._wanted, self._limits = given, Limits(library, similarity, width, ahead, MEMORY_MB, rebuild_ms)
        self.retrieval = Retrieval(self._limits, self._prepare, lambda x: x.nbytes)
        self.begin()

    def files(self, policy: Path) -> list[Path]:
        """The library's."""
        return self._limits.files(policy)

    def first_observations(self, policy: Path) -> frozenset[str]:
        """Those of the library's episodes."""
        return Library(self._limits.folder(policy)).first_observations

    def attach(self, policy: Policy) -> None:
        """Opens the library, and prepares how its episodes begin.

        Raises:
            CheckpointError: There is none, it is damaged, or it was made with other weights.
            ValueError: No step would be left.
        """
        self._model, steps = policy.model, policy.model.flow.steps
        self.given = GIVEN.get(steps, steps // 2) if self._wanted is None else self._wanted
        if self.given >= steps:
            raise ValueError(
                f"nirvana takes {self.given} steps over, and {policy.name} has {steps}: none is left; give fewer"
            )
        self.retrieval.open(policy)
        self.retrieval.prepare_beginnings()

    def begin(self) -> None:
        """Forgets the last episode, and keeps how others begin."""
        self.retrieval.begin()
        self._steps = 0

    def look(self, call: Call) -> None:
        """Retrieves the round's reference."""
        self.retrieval.look(call)

    def idle(self, budget_ns: int) -> None:
        """Prepares candidates of the next round."""
        self.retrieval.idle(budget_ns)

    def init(self, call: Call, flow: FlowSpec) -> Start | None:
        """The reference's noisy chunk after its given steps."""
        if self.retrieval.reference is None or not self.given:
            return None
        self._steps += self.given
        return Start(self.retrieval.reference, flow.schedule().times[self.given])

    def counters(self) -> dict[str, float]:
        """Steps that were taken over, rounds by what the retrieval found, and prepared references."""
        found = {f"nirvana_{name}": count for name, count in self.retrieval.rounds.items()}  # rmuscle counts them too
        return {"steps_given": self._steps, **found}

    def _prepare(self, pack: Pack, row: int) -> Tensor:
        """Returns the noisy chunk [1, H, A] of a round of the library after its given steps."""
        model, flow = self._model, self._model.flow
        inputs = pack.inputs(row).to(model.device, model.dtype)
        context = model.condition(model.prefill(model.encode(inputs)), inputs)
        noise = noise_of(pack, row, model.noise_shape).to(model.device)
        times, x = flow.schedule().times[: self.given + 1], noise
        for time, later in zip(times[:-1], times[1:], strict=True):
            x = flow.advance(x, model.step(x, time, context), noise, time, later)
        return x


def noise_of(pack: Pack, row: int, shape: tuple[int, int]) -> Tensor:
    """Returns the noise [1, H, A] of a round of the library, which does not keep any: its inputs decide."""
    seed = zlib.crc32(pack.tensors["images"][row].numpy().tobytes())
    return torch.randn((1, *shape), generator=torch.Generator().manual_seed(seed))
