"""What Kunlun does beyond the table of all vendors."""

import pytest
from pytest import param

from hami.codec.register import render_devices_json
from hami.model import NodePolicy
from tests.builders import gpu, node, share
from tests.vendors.rows_kunlun import CARDS, SLICES, cards


def held(*indexes):
    return tuple(share(f"n-kunlun-{index}", 98304, 100, "kunlun") for index in indexes)


@pytest.mark.parametrize("used, placement, score", [
    param(range(4), (held(*range(8)),), 3000, id="K7"),
    param((), (held(0, 1, 2, 3),), 2000, id="a whole wing of an idle server"),
    param((), (held(*range(8)),), 3000, id="an idle server"),
    param((), (held(0),), 0, id="a single card of an idle server"),
    param((), (held(0, 1),), 1000, id="a part of a wing of an idle server"),
    param((0, 1), (held(2, 3),), 3000, id="A14 the rest of a wing, beside cards in use"),
    param((0, 1), (held(4, 5),), 2000, id="A14 a part of the other wing"),
    param((0, 1), (held(4),), 1000, id="A14 a single card in the other wing"),
    param((0, 4), (held(1, 5),), 3000, id="A14 two single cards get company"),
    param((0, 1, 2), (held(3),), 3000, id="A14 the last of a wing"),
    param((0, 1), (held(2), (), held(3)), 3000, id="all containers of a pod together"),
])
@pytest.mark.parametrize("policy", NodePolicy)
def test_node_score_is_higher_the_less_wings_are_cut_up(used, placement, score, policy):
    assert CARDS.node_score(cards(*used), placement, policy) == score


def test_slices_have_no_score():
    assert SLICES.node_score is None


@pytest.mark.parametrize("count, numas", [(8, [0] * 4 + [1] * 4), (3, [0, 1, 1]), (1, [1]), (2, [0, 1])])
def test_cards_are_counted(count, numas):
    devices = CARDS.inventory(CARDS, node("n", capacity={"kunlunxin.com/xpu": str(count)}))
    assert [device.numa for device in devices] == numas
    assert [(d.uuid, d.index) for d in devices] == [(f"n-kunlun-{index}", index) for index in range(count)]
    assert {(d.slots, d.memory_mib, d.cores) for d in devices} == {(100, 98304, 100)}


def test_cards_that_can_be_sliced_are_registered():
    device = gpu("xpu-3", vendor="XPU", model="XPU", slots=4, memory_mib=98304, index=3)
    there = node("n", annotations={SLICES.register: render_devices_json((device,))})
    assert SLICES.inventory(SLICES, there) == (device,)
