"""pi0.5 as a policy: its prompt, its processor, and the methods on it."""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from replan import accel
from replan.policies import checkpoint
from replan.policies.agent import ChunkAgent
from replan.policies.pi05 import TINY, Pi05, Pi05Processor
from replan.policies.policy import load_policy
from replan.policies.processing import ObservationError

CONFIG = replace(TINY, vision_depth=1, depth=3, width=64, mlp=96, expert_width=48, expert_mlp=96)
WORDS = ("<pad>", "bin", "hairbrush", "in", "put", "red", "the", "task", "state", "action", *map(str, range(256)))


def processor(**changes):
    given = dict(
        cameras=("third", "wrist"),
        image_size=64,
        words=WORDS,
        max_tokens=24,
        state_mean=(0.1,) * 11,
        state_std=(2.0,) * 11,
        action_mean=(0.0, 0.1, -0.1, 0.0, 0.0, 0.0, -0.2),
        action_std=(0.5, 0.4, 0.3, 1.0, 1.0, 0.2, 0.9),
        gripper=(6,),
        replan=10,
        format="state",
    )
    return Pi05Processor(**given | changes)


@pytest.fixture(scope="module")
def pi05(tmp_path_factory, randomised):
    model = randomised(Pi05(replace(CONFIG, vocab=len(WORDS))))
    path = tmp_path_factory.mktemp("pi05") / "random.safetensors"
    header = checkpoint.Header("pi0.5", asdict(model.config), asdict(processor()), {})
    checkpoint.save(path, header, model, torch.float32)
    return load_policy(path)


def act(policy, observation, spec, steps=12):
    agent = ChunkAgent(policy, accel.parse(spec))
    return np.stack([agent.act(observation) for _ in range(steps)]), agent


def test_the_prompt_states_the_state_in_bins_or_leaves_it_out():
    state = torch.tensor([-2.0, -1.0, 0.0, 0.999, 5.0])
    text = processor().prompt("Put the hairbrush_in the red bin", state)
    assert text == "Task: Put the hairbrush in the red bin, State: -1 0 128 255 255;\nAction: "
    alone = processor(format="instruction").prompt("put the hairbrush in the red bin", state)
    assert alone == "put the hairbrush in the red bin\n"


def test_the_state_reaches_the_actions_through_the_prompt_alone(pi05, observation):
    inputs = pi05.processor.inputs(observation)
    moved = pi05.processor.inputs({**observation, "state": observation["state"] + 1})
    assert not torch.equal(inputs.tokens, moved.tokens)
    with torch.inference_mode():
        context = pi05.model.prefill(pi05.model.encode(inputs))
        here, there = (pi05.model.condition(context, each) for each in (inputs, moved))
        x = torch.zeros(1, *pi05.model.noise_shape)
        assert torch.equal(pi05.model.step(x, 0.5, here), pi05.model.step(x, 0.5, there))


@pytest.mark.parametrize("spec", ["few_step:steps=10", "dp_cache:keep=0/1/2/3/4/5/6/7/8/9", "wam_cache:attention=1"])
def test_limit_cases_of_methods_are_bit_for_bit_dense(pi05, observation, spec):
    dense, _ = act(pi05, observation, "dense")
    limit, _ = act(pi05, observation, spec)
    assert np.array_equal(limit, dense)


def test_methods_act_on_it(pi05, observation):
    for spec, counter in (
        ("few_step", "steps_saved"),
        ("dp_cache", "predictions_reused"),
        ("wam_cache", "rows_reused"),
    ):
        _, agent = act(pi05, observation, spec)
        agent.reset(1)
        for _ in range(12):
            agent.act(observation)
        assert agent.counters()[counter] > 0


def test_a_word_that_the_vocabulary_lacks_and_a_format_that_does_not_exist_are_refused(observation):
    with pytest.raises(ObservationError, match=r"words \['dog'\]"):
        processor().inputs({**observation, "instruction": "put the dog in the red bin"})
    with pytest.raises(ValueError, match="format must be one of instruction, state, got 'text'"):
        processor(format="text")
