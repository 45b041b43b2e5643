"""Names of tasks and cameras. Needs no simulator, and nothing of this package: the user's interpreter reads it too."""

from __future__ import annotations

import functools
import json
from pathlib import Path

STORED = Path(__file__).with_name("seeds.json")  # written by find_scenes.py --bundled
CAMERAS = {"head": "head_camera", "left_wrist": "left_camera", "right_wrist": "right_camera"}  # ours: upstream's
COUNT = 50  # evaluated scenes of a task
TASKS = tuple(
    """
    adjust_bottle beat_block_hammer blocks_ranking_rgb blocks_ranking_size click_alarmclock click_bell dump_bin_bigbin
    grab_roller handover_block handover_mic hanging_mug lift_pot move_can_pot move_pillbottle_pad move_playingcard_away
    move_stapler_pad open_laptop open_microwave pick_diverse_bottles pick_dual_bottles place_a2b_left place_a2b_right
    place_bread_basket place_bread_skillet place_burger_fries place_can_basket place_cans_plasticbox
    place_container_plate place_dual_shoes place_empty_cup place_fan place_mouse_pad place_object_basket
    place_object_scale place_object_stand place_phone_stand place_shoe press_stapler put_bottles_dustbin
    put_object_cabinet rotate_qrcode scan_object shake_bottle shake_bottle_horizontally stack_blocks_three
    stack_blocks_two stack_bowls_three stack_bowls_two stamp_seal turn_switch
    """.split()
)  # upstream's


@functools.cache
def standin_tasks() -> tuple[str, ...]:
    """Returns the tasks that upstream's expert solves on the stand-in assets: those with stored scenes."""
    return tuple(sorted(json.loads(STORED.read_text(encoding="utf-8"))["tasks"]))
