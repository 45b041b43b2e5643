"""Records a suite's expert on initial states that no evaluation uses: one recording per task.

How an episode is recorded is the suite's business (:class:`replan.envs.demonstrations.Demonstrations`). A recording is
keyed by (seed, task), so it is the same whatever runs at the same time, and one that exists is not made again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pkgutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tqdm import tqdm

from ..envs.demonstrations import TRAINING_SEED, Behaviour, Episode, cameras_restored
from ..policies.call import call_policy
from ..policies.checkpoint import about, files_hash
from ..policies.policy import load_policy, open_policy
from ..policies.processing import views
from ..policies.seams import Methods
from ..policies.training.recording import ORIGIN, Conventions, Frames

_SEEDS, _TASKS, _EPISODES = 1_000, 1_000, 1_000  # bounds, so that every episode has its own number


class ExpertFailed(RuntimeError):
    """The expert solved no episode of a task, so the recording would be empty."""


@dataclass(frozen=True)
class Request:
    """One recording to make.

    Attributes:
        env_id: Gymnasium id, with its module: ``replan.envs:replan/ConveyorSorting-v0``.
        conventions: Conventions of the suite.
        episode: Entry point ``module:function`` of the function that records one episode.
        task: Task.
        index: Index of the task in the suite.
        out: Folder to write.
        episodes: Episodes to run.
        seed: Separates recordings; the same seed gives the same frames.
        horizon: Number of actions of a label.
        settings: Arguments of the environment.
        policy: Name or path of the policy that acts (DAgger); None lets the disturbed expert act.
    """

    env_id: str
    conventions: Conventions
    episode: str
    task: str
    index: int
    out: Path
    episodes: int
    seed: int
    horizon: int
    settings: dict[str, Any] = field(default_factory=dict)
    policy: str | Path | None = None


def collect(request: Request) -> float:
    """Makes a recording and returns the share of its episodes that succeeded.

    Raises:
        ValueError: The seed or the number of episodes is too large to be numbered.
        ExpertFailed: No episode could be recorded.
    """
    if not (0 <= request.seed < _SEEDS and request.index < _TASKS and 0 < request.episodes <= _EPISODES):
        raise ValueError(
            f"seed must be 0..{_SEEDS - 1} and episodes 1..{_EPISODES} a task, "
            f"got {request.seed} and {request.episodes}"
        )
    torch.set_num_threads(1)
    episode: Episode = pkgutil.resolve_name(request.episode)
    conventions = request.conventions
    env: Any = gymnasium.make(request.env_id, disable_env_checker=True, **request.settings).unwrapped
    policy = _behaviour(request.policy, request.seed * _TASKS + request.index) if request.policy else None
    rows: list[tuple[Any, ...]] = []
    successes = 0
    for number in tqdm(range(request.episodes), desc=request.out.name, mininterval=5.0, leave=False):
        key = (request.seed * _TASKS + request.index) * _EPISODES + number
        rng = np.random.default_rng([TRAINING_SEED, key])
        with cameras_restored(env):
            frames = episode(env, rng, TRAINING_SEED + key, request.task, request.horizon, policy)
        successes += frames.success
        for observation, label in zip(frames.observations, frames.labels, strict=True):
            images = views(observation, conventions.cameras, conventions.image_size)
            rows.append((images, observation["state"], observation["instruction"], label, number))
    env.close()
    if not rows:
        raise ExpertFailed(f"the expert solved none of {request.episodes} episodes of {request.task}")
    images, state, instruction, actions, index = zip(*rows, strict=True)
    Frames(
        np.stack(images),
        np.stack(state),
        np.array(instruction),
        np.stack(actions).astype(np.float32),
        np.array(index, np.int64),
        conventions,
    ).save(request.out, _origin(request))
    return successes / request.episodes


def _behaviour(name: str | Path, seed: int) -> Behaviour:
    """Returns a dense policy with its own stream of noise."""
    policy, generator = load_policy(name), torch.Generator().manual_seed(seed)

    def act(observation: dict[str, Any]) -> np.ndarray:
        noise = torch.randn((1, *policy.model.noise_shape), generator=generator)
        chunk = call_policy(policy, Methods(), observation, noise).chunk
        return policy.processor.actions(chunk[0], observation["state"])

    return act


def collect_all(requests: list[Request], workers: int) -> dict[str, float]:
    """Makes the missing recordings in several processes, and returns the success rate of each, by task.

    Raises:
        ValueError: A folder holds a recording that was made with something else; or the expert cannot do some of the
            tasks, in which case the others are recorded nevertheless.
    """
    missing = [request for request in requests if not request.out.is_dir()]
    for request in requests:
        if request in missing:
            if os.path.lexists(request.out):  # the recording would be lost when it is finished
                raise ValueError(f"{request.out} exists and is no folder; choose another --out")
            continue
        origin, note = _origin(request), (request.out / ORIGIN).read_bytes()
        with about(request.out / ORIGIN):
            stored = dict(json.loads(note))
        if changed := sorted(name for name in origin if stored.get(name) != origin[name]):
            raise ValueError(f"{request.out} was recorded with other {', '.join(changed)}; choose another folder")
    context = multiprocessing.get_context("spawn")
    rates: dict[str, float] = {}
    failed: list[str] = []
    with ProcessPoolExecutor(min(workers, max(len(missing), 1)), context) as pool:
        futures = [pool.submit(collect, request) for request in missing]
        for request, future in zip(missing, tqdm(futures, desc="tasks", mininterval=5.0), strict=True):
            try:
                rates[request.task] = future.result()
            except (ExpertFailed, NotImplementedError) as error:
                failed.append(f"{request.task}: {error}")
    if failed:
        raise ValueError(f"{len(rates)} tasks were recorded, and these could not be: {'; '.join(failed)}")
    return rates


def _origin(request: Request) -> dict[str, Any]:
    """Returns everything that decides the frames of a recording, as JSON values."""
    plain = asdict(request)
    plain.update(out=None, conventions=asdict(request.conventions))
    plain["policy"] = files_hash(open_policy(request.policy).files) if request.policy else None
    return json.loads(json.dumps(plain))
