"""Methods by name: options are typed, mistakes are named, and only disjoint claims compose."""

from __future__ import annotations

import pytest
from replan import accel


def test_options_reach_the_method_with_their_types():
    flash, few = accel.parse("flash:delta=0.1:gripper=false:tau=0.8/0.9/0.95:refresh=4+few_step:steps=3")
    assert (flash.delta, flash.gripper, flash.tau, flash.refresh) == (0.1, False, (0.8, 0.9, 0.95), 4)
    assert few.steps == 3


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("flsh", "flash"),
        ("flash:dleta=1", "delta=0.15"),
        ("flash:delta=much", "much"),
        ("flash:delta", "delta"),
        ("dense:steps=2", "takes none"),
        ("few_step:steps=2.5", "2.5"),
        ("", "unknown method ''"),
    ],
)
def test_mistakes_name_the_way_out(spec, message):
    with pytest.raises(accel.UnknownMethod, match=message):
        accel.parse(spec)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("few_step:steps=0", "0"),
        ("dp_cache:keep=1/2", "step 0"),
        ("dp_cache:keep=0/-1", "-1"),
        ("flash:delta=-1", "-1"),
        ("flash:delta=nan", "nan"),
        ("flash:tau=1.0", "1.0"),
        ("flash:refresh=-1", "-1"),
        ("flash:reject=maybe", "maybe"),
        ("few_step+dp_cache", "'few_step' and 'dp_cache' cannot be combined: both replace the 'schedule' seam"),
        ("flash+flash", "'round'"),
    ],
)
def test_values_out_of_range_and_claims_that_clash_are_refused(spec, message):
    with pytest.raises(ValueError, match=message):
        accel.parse(spec)
