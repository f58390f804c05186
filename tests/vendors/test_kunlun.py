"""What Kunlun does beyond the table of all vendors."""

import pytest
from pytest import param

from hami.model import DeviceUsage, NodePolicy, Unfit
from hami.scheduling.placement import place_pod
from hami.scheduling.usage import charge_shares
from hami.vendors.request import device_request
from testing.builders import container, node, pod_request, request, share
from tests.vendors.rows_kunlun import CARDS, SLICES, cards, vxpu


def held(*indexes):
    return tuple(share(f"n-kunlun-{index}", 98304, 100, "kunlun") for index in indexes)


@pytest.mark.parametrize(
    "used, placement, score",
    [
        param(range(4), (held(*range(8)),), 3000, id="one wing, all cards in use"),
        param((), (held(0, 1, 2, 3),), 2000, id="a whole wing of an idle server"),
        param((), (held(*range(8)),), 3000, id="an idle server"),
        param((), (held(0),), 0, id="a single card of an idle server"),
        param((), (held(0, 1),), 1000, id="a part of a wing of an idle server"),
        param((0, 1), (held(2, 3),), 3000, id="the rest of a wing, beside cards in use"),
        param((0, 1), (held(4, 5),), 2000, id="a part of the other wing"),
        param((0, 1), (held(4),), 1000, id="a single card in the other wing"),
        param((0, 4), (held(1, 5),), 3000, id="two single cards get company"),
        param((0, 1, 2), (held(3),), 3000, id="the last of a wing"),
        param((0, 1), (held(2), (), held(3)), 3000, id="all containers of a pod together"),
    ],
)
@pytest.mark.parametrize("policy", NodePolicy)
def test_node_score_is_higher_the_less_wings_are_cut_up(used, placement, score, policy):
    assert CARDS.decision.node_score(cards(*used), placement, policy) == score


def test_no_memory_is_the_smallest_slice_even_where_admission_was_not_asked():
    assert device_request(SLICES, container(vxpu(1, 0))) == request(1, 24576, None, 25, "XPU")


def test_slices_have_no_score():
    assert SLICES.decision.node_score is None


@pytest.mark.parametrize(
    "count, numas", [(8, [0] * 4 + [1] * 4), (3, [0, 1, 1]), (1, [1]), (2, [0, 1])]
)
def test_cards_are_counted(count, numas):
    devices = CARDS.decision.inventory(CARDS, node("n", capacity={"kunlunxin.com/xpu": str(count)}))
    assert [device.numa for device in devices] == numas
    assert [(d.uuid, d.index) for d in devices] == [
        (f"n-kunlun-{index}", index) for index in range(count)
    ]
    assert {(d.slots, d.memory_mib, d.cores) for d in devices} == {(100, 98304, 100)}


REGISTERED = '[{"id":"xpu-0","count":1,"devmem":98304,"devcore":%d,"type":"XPU","health":true}]'


@pytest.mark.parametrize("cores", [100, 0])
def test_a_card_is_not_over_while_there_is_memory_for_slices(cores):
    """With any registered number of slots and cores, a pod that fits is not rejected at bind."""
    annotations = {SLICES.annotations.register: REGISTERED % cores}
    (device,) = SLICES.decision.inventory(SLICES, node("n", annotations=annotations))
    card, taken = [DeviceUsage(device)], 0
    slice_request = pod_request(container(vxpu(1, 24576)), vendors=[SLICES])
    while not isinstance(found := place_pod({"XPU": card}, slice_request), Unfit):
        card, taken = charge_shares(card, found[0]), taken + 1
        assert not card[0].is_overcommitted
    assert taken == 4
