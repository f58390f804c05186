"""What Ascend does beyond the table of all vendors."""

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hami.codec.allocation import render_shares
from hami.errors import MalformedInput
from hami.model import NodePolicy, Unfit
from hami.scheduling.placement import place_pod
from hami.scheduling.usage import charge_shares
from hami.state.binding_annotations import render_vendor_annotations
from hami.vendors.admission import admit_pod
from hami.vendors.catalog import vendors
from hami.vendors.draft import PodDraft
from hami.vendors.request import device_request
from hami.vendors.spec import AnnotationContext
from hami.vendors.vocabulary import Vocabulary
from testing.builders import container, node, pod, pod_request, share
from testing.cases import cases
from testing.vendor_rows import NOW, admitted
from testing.vendor_rows import given as limits_of
from tests.vendors.rows_ascend import CHART, SOFT, ascend, b910, chips, p310

ALL = vendors(CHART, ascend=True)
B910, P310 = b910.vendor, p310.vendor
HARD, HIDDEN = {}, [{"name": "ASCEND_VISIBLE_DEVICES", "value": ""}]


@pytest.mark.parametrize("factor, memory_mib", [(10, 1280), (100, 12800), (0, 128)])
def test_memory_is_multiplied_by_the_factor(factor, memory_mib):
    chip = ascend("Ascend910A", memory_factor=factor)
    assert device_request(chip.vendor, container(chip.limits(1, 128))).memory_mib == memory_mib


def context(*containers, annotations=None, devices=()):
    return AnnotationContext(
        pod=pod(annotations=annotations or {}),
        node="n",
        shares=containers,
        devices={usage.device.uuid: usage.device for usage in devices},
        now=NOW,
    )


@cases(
    "annotations, text",
    ("in hard split", HARD, '[{"UUID":"device-0","temp":"vir08","memory":8738,"core":1}]'),
    ("in soft split", SOFT, '[{"UUID":"device-0","memory":8738,"core":1}]'),
)
def test_what_the_device_plugin_reads(annotations, text):
    (chip,) = (chip for chip in CHART.ascends if chip.common_word == "Ascend910A")
    config = msgspec.structs.replace(chip, common_word="Ascend")
    vendor = vendors(replace(CHART, ascends=(config,)), ascend=True)["Ascend"]
    texts = render_vendor_annotations(
        vendor, context((share("device-0", 8738, 1, "Ascend"),), annotations=annotations)
    )
    assert texts["hami.io/Ascend-devices-allocated"] == "device-0,Ascend,8738,1:;"
    assert (texts["huawei.com/Ascend"], texts["predicate-time"]) == (text, "1787313600")


def test_what_the_device_plugin_reads_has_the_chips_of_all_containers_in_order():
    a, b = share("a", 3072, 0, P310.key), share("b", 21527, 0, P310.key)
    texts = render_vendor_annotations(P310, context((b,), (), (a,)))
    assert texts[P310.annotations.allocated] == render_shares(((b,), (), (a,)))
    assert texts["huawei.com/Ascend310P"] == (
        '[{"UUID":"b","memory":21527},{"UUID":"a","temp":"vir01","memory":3072}]'
    )


REGISTERED = '[{"id":"d","count":4,"devmem":65536,"devcore":20,"type":"Ascend910B3","health":true,"custominfo":%s}]'


@cases(
    "default, said, soft",
    (False, None, False),
    (True, None, True),
    (False, "true", True),
    (True, "false", False),
    (True, "True", False),
    (True, "", False),
)
def test_a_node_has_the_soft_split_if_it_says_so_or_else_by_default(default, said, soft):
    annotations = {B910.annotations.register: REGISTERED % '{"NetworkID":3}'}
    annotations |= {} if said is None else {"hami-vnpu-core": said}
    vendor = ascend("Ascend910B3", soft=default).vendor
    (device,) = vendor.decision.inventory(vendor, node("n", annotations=annotations))
    assert device.info == {"NetworkID": 3, "hami-vnpu-core": soft}
    assert (device.cores, device.vendor) == (100, "Ascend910B3")
    assert "hami-vnpu-core" in vendor.annotations.node_keys, "a change would not be seen"


def test_a_node_without_chips():
    assert B910.decision.inventory(B910, node("n", annotations={"hami-vnpu-core": "true"})) is None


def env_after(overwriting, limits):
    """The environment of a container with *limits*, where the chips *overwriting* have overwriteEnv."""
    config = replace(
        CHART,
        ascends=tuple(
            msgspec.structs.replace(one, overwrite_env=one.common_word in overwriting)
            for one in CHART.ascends
        ),
    )
    catalog = vendors(config, ascend=True)
    draft = PodDraft({"spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}})
    admit_pod(Vocabulary(catalog), draft)
    return draft.render()["spec"]["containers"][0].get("env", [])


@cases(
    "overwriting, limits, env",
    ("not configured", [], {}, []),
    ("no chip is asked for", ["Ascend910B3"], {}, HIDDEN),
    ("another vendor's device", ["Ascend910B3"], {"nvidia.com/gpu": "1"}, HIDDEN),
    ("memory alone is no chip", ["Ascend910B3"], b910.limits(None, 5), HIDDEN),
    ("this chip", ["Ascend910B3"], b910.limits(1), []),
    ("another chip of Ascend", ["Ascend910B3"], p310.limits(1), []),
    (
        "once, however many chips have the switch",
        ["Ascend310P", "Ascend910B3", "Ascend910C"],
        {},
        HIDDEN,
    ),
    ("another chip has the switch, too", ["Ascend310P", "Ascend910B3"], b910.limits(1), []),
)
def test_chips_are_hidden_from_containers_without_any(overwriting, limits, env):
    assert env_after(overwriting, limits) == env


def test_one_vendor_looks_after_containers_that_ask_for_no_chip():
    config = replace(
        CHART,
        ascends=tuple(msgspec.structs.replace(one, overwrite_env=True) for one in CHART.ascends),
    )
    assert len(vendors(config, ascend=True).admitting_all) == 1
    assert vendors(CHART, ascend=True).admitting_all == ()


def held(*uuids):
    return tuple(share(uuid, 65536, 0, B910.key) for uuid in uuids)


@cases(
    "usages, placement, score",
    ("one network", chips(1, 1, 2), (held("d0", "d1"),), 10),
    ("two networks", chips(1, 1, 2), (held("d1", "d2"),), 5),
    (
        "containers add up",
        chips(1, 1, 2),
        (held("d0", "d1", "d2"), (), held("d2")),
        10 * 2 / 3 + 10,
    ),
    ("a chip without network", chips(1, None), (held("d0"), held("d1")), 0),
    ("a network that is no number", chips(1, "x"), (held("d1"),), 0),
    ("a network that is a truth", chips(1, True), (held("d1"),), 0),
    ("no chip", chips(1), ((),), 0),
)
def test_node_score_is_higher_where_chips_share_a_network(usages, placement, score):
    assert B910.decision.node_score(usages, placement, NodePolicy.BINPACK) == pytest.approx(score)


@pytest.mark.parametrize("policy", NodePolicy)
def test_higher_is_better_whatever_the_policy(policy):
    near, far = (
        B910.decision.node_score(chips(1, 1, 2), (held(*uuids),), policy)
        for uuids in (("d0", "d1"), ("d1", "d2"))
    )
    assert near > far


def test_chips_without_networks_have_no_score():
    assert P310.decision.node_score is None


def test_only_the_switch_adds_chips():
    assert [vendor.key for vendor in vendors(CHART) if vendor.key.startswith("Ascend")] == []
    assert [
        vendor.key for vendor in vendors(CHART, ascend=True) if vendor.key.startswith("Ascend")
    ] == sorted(one.common_word for one in CHART.ascends)


def test_chips_whose_name_begins_alike_are_kept_apart():
    text = REGISTERED.replace("Ascend910B3", "Ascend910B4-1") % "{}"
    there = node("n", annotations={"hami.io/node-register-Ascend910B4-1": text})
    found = [
        vendor.key
        for vendor in vendors(CHART, ascend=True)
        if vendor.decision.inventory(vendor, there)
    ]
    assert found == ["Ascend910B4-1"]


PODS = st.lists(
    st.tuples(
        st.sampled_from([1, 1, 2]), st.integers(1, 65536), st.integers(0, 120), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@given(pods=PODS, word=st.sampled_from(["Ascend310P", "Ascend910A", "Ascend910B3", "Ascend910C"]))
def test_chips_are_never_over_whichever_way_pods_divide_them(pods, word):
    """Hard and soft split on the same chips, until one does not fit. Hard split takes templates."""
    vendor = ALL[word]
    (config,) = (one for one in CHART.ascends if one.common_word == word)
    held = chips(*[None] * 4, soft=True, memory_mib=config.memory_allocatable, slots=8)
    sizes = {config.memory_allocatable, *(template.memory_mib for template in config.templates)}
    for count, memory, core, soft in pods:
        annotations = SOFT if soft else HARD
        try:
            limits, _, _ = admitted(
                vendor, limits_of(vendor, count, memory, core if soft else None), {}, annotations
            )
        except MalformedInput:
            continue
        found = place_pod(
            {word: held}, pod_request(container(limits), annotations=annotations, vendors=[vendor])
        )
        if not isinstance(found, Unfit):
            held = charge_shares(held, found[0])
            assert not any(usage.is_overcommitted for usage in held)
            assert soft or {share.memory_mib for share in found[0]} <= sizes
            assert word != "Ascend910C" or sorted(share.uuid for share in found[0]) in (
                ["d0", "d1"],
                ["d2", "d3"],
            )
