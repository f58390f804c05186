"""What Kunlun does beyond the table of all vendors."""

import pytest

from hami.model import DeviceUsage, NodePolicy, Unfit
from hami.scheduling.placement import place_pod
from hami.scheduling.usage import charge_shares
from hami.vendors.request import device_request
from testing.builders import container, node, pod_request, request, share
from testing.cases import cases
from tests.vendors.rows_kunlun import CARDS, SLICES, cards, vxpu


def held(*indexes):
    return tuple(share(f"n-kunlun-{index}", 98304, 100, "kunlun") for index in indexes)


@cases(
    "used, placement, score",
    ("one wing, all cards in use", range(4), (held(*range(8)),), 3000),
    ("a whole wing of an idle server", (), (held(0, 1, 2, 3),), 2000),
    ("an idle server", (), (held(*range(8)),), 3000),
    ("a single card of an idle server", (), (held(0),), 0),
    ("a part of a wing of an idle server", (), (held(0, 1),), 1000),
    ("the rest of a wing, beside cards in use", (0, 1), (held(2, 3),), 3000),
    ("a part of the other wing", (0, 1), (held(4, 5),), 2000),
    ("a single card in the other wing", (0, 1), (held(4),), 1000),
    ("two single cards get company", (0, 4), (held(1, 5),), 3000),
    ("the last of a wing", (0, 1, 2), (held(3),), 3000),
    ("all containers of a pod together", (0, 1), (held(2), (), held(3)), 3000),
)
@pytest.mark.parametrize("policy", NodePolicy)
def test_node_score_is_higher_the_less_wings_are_cut_up(used, placement, score, policy):
    assert CARDS.decision.node_score(cards(*used), placement, policy) == score


def test_no_memory_is_the_smallest_slice_even_where_admission_was_not_asked():
    assert device_request(SLICES, container(vxpu(1, 0))) == request(1, 24576, None, 25, "XPU")


def test_slices_have_no_score():
    assert SLICES.decision.node_score is None


@cases("count, numas", (8, [0] * 4 + [1] * 4), (3, [0, 1, 1]), (1, [1]), (2, [0, 1]))
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
