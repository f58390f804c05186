"""ResourceClaims: what was allocated, and what containers ask for."""

import json

import pytest
from hypothesis import given

from hami.codec.claim_spec import Inexpressible, render_claim_spec
from hami.codec.claims import AllocatedClaim, ClaimedDevice, ClaimedRequest, CorePolicy, parse_claim
from hami.errors import MalformedInput
from hami.model import PodRef, Selector
from testing.builders import request
from testing.cases import cases
from testing.fuzz import bodies, replaced

RESULT = {
    "request": "main",
    "driver": "gpu.hami.io",
    "pool": "hami/n1",
    "device": "gpu-5a1c",
    "shareID": "share-1",
    "consumedCapacity": {"memory": "3000Mi", "cores": "10", "share": "10"},
}
FOREIGN = {"request": "nic", "driver": "nic.example.com", "pool": "n1", "device": "ANY"}
DEVICE = ClaimedDevice(
    pool="hami/n1",
    device="gpu-5a1c",
    memory_mib=3000,
    cores=10,
    share_milli=10_000,
    share_id="share-1",
)


def claim(*results, config=(), **status):
    """A claim with these results."""
    return {
        "metadata": {"namespace": "team-a", "name": "pod1-hami", "uid": "0b6c-1"},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(config)}},
            **status,
        },
    }


def setting(source="FromClass", driver="gpu.hami.io", requests=(), **parameters):
    """A configuration of a class or a claim."""
    return {
        "source": source,
        "requests": list(requests),
        "opaque": {
            "driver": driver,
            "parameters": {"apiVersion": "hami.io/v1", "kind": "ShareConfig", **parameters},
        },
    }


def parsed(document):
    return parse_claim(json.dumps(document).encode())


def spec(selector=Selector(), sizes=(81920,), numa_bind=False, **requests):
    return render_claim_spec(requests, selector, sizes, numa_bind=numa_bind)


def exactly(**fields):
    """The request of one container called main."""
    return {
        "devices": {
            "requests": [
                {"name": "main", "exactly": {"deviceClassName": "gpu.hami.io", "count": 1} | fields}
            ]
        }
    }


def test_an_allocated_claim():
    document = claim(
        RESULT,
        FOREIGN,
        reservedFor=[
            {"resource": "pods", "name": "pod1", "uid": "u1"},
            {
                "apiGroup": "scheduling.k8s.io",
                "resource": "podgroups",
                "name": "group",
                "uid": "u2",
            },
        ],
    )
    assert parsed(document) == AllocatedClaim(
        namespace="team-a",
        name="pod1-hami",
        uid="0b6c-1",
        pods=(PodRef("team-a", "pod1", "u1"),),
        requests=(ClaimedRequest(name="main", devices=(DEVICE,)),),
    )


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"status": None},
        {"status": {}},
        {"status": {"allocation": None}},
        {"status": {"allocation": {"devices": {"results": None}}}},
    ],
)
def test_a_claim_that_is_not_allocated_has_no_requests(status):
    assert parsed({"metadata": claim()["metadata"], **status}).requests == ()


def test_a_subrequest_counts_as_its_request():
    other = RESULT | {"request": "main/m15360", "device": "gpu-7b7b"}
    (allocated,) = parsed(claim(RESULT | {"request": "main/m15360"}, other)).requests
    assert (allocated.name, [device.device for device in allocated.devices]) == (
        "main",
        ["gpu-5a1c", "gpu-7b7b"],
    )


def test_several_requests_keep_their_order():
    document = claim(RESULT | {"request": "b"}, RESULT | {"request": "a"})
    assert [allocated.name for allocated in parsed(document).requests] == ["b", "a"]


def test_access_of_administrators_consumes_nothing():
    admin = {key: value for key, value in RESULT.items() if key != "consumedCapacity"} | {
        "adminAccess": True
    }
    (allocated,) = parsed(claim(admin)).requests
    assert allocated.admin
    assert allocated.devices == (
        ClaimedDevice(pool="hami/n1", device="gpu-5a1c", share_id="share-1"),
    )


@cases("text, mib", ("1Gi", 1024), ("3145728000", 3000), ("2097152k", 2000), ("0", 0))
def test_memory_in_any_unit(text, mib):
    document = claim(RESULT | {"consumedCapacity": RESULT["consumedCapacity"] | {"memory": text}})
    assert parsed(document).requests[0].devices[0].memory_mib == mib


@pytest.mark.parametrize("share, milli", [("100", 100_000), ("6666m", 6_666), ("12500m", 12_500)])
def test_shares_in_thousandths(share, milli):
    document = claim(RESULT | {"consumedCapacity": RESULT["consumedCapacity"] | {"share": share}})
    assert parsed(document).requests[0].devices[0].share_milli == milli


@cases(
    "path, value, words",
    ("uid", ("metadata", "uid"), "../x", "metadata.uid: expected letters"),
    ("long uid", ("metadata", "uid"), "u" * 65, "metadata.uid"),
    ("name", ("metadata", "name"), "a/b", "metadata.name"),
    (
        "pod",
        ("status", "reservedFor"),
        [{"resource": "pods", "name": "P", "uid": "u"}],
        r"reservedFor\[0\].name",
    ),
    (
        "pods",
        ("status", "reservedFor"),
        [{"resource": "pods", "name": "p", "uid": "u"}] * 257,
        "reservedFor",
    ),
    ("results", ("status", "allocation", "devices", "results"), [RESULT] * 33, "results"),
    (
        "twice",
        ("status", "allocation", "devices", "results"),
        [RESULT, RESULT],
        r"results\[1\].device: twice",
    ),
    (
        "two alternatives",
        ("status", "allocation", "devices", "results"),
        [RESULT | {"request": "main/a"}, RESULT | {"request": "main/b", "device": "gpu-2"}],
        r"results\[1\].request: expected main/a",
    ),
)
def test_malformed_claims_are_refused(path, value, words):
    document = claim(RESULT, reservedFor=[])
    with pytest.raises(MalformedInput, match=words):
        parsed(replaced(document, path, value))


@cases(
    "field, value, words",
    ("a path as request", "request", "../../x", "request: expected the name of a request"),
    ("three names", "request", "a/b/c", "request"),
    ("a line", "request", "main\n", "request"),
    ("device", "device", "GPU-5a1c", "device: expected a name"),
    ("no device", "device", "", "device"),
    ("long pool", "pool", "p" * 254, "pool"),
    ("long share", "shareID", "s" * 65, "shareID"),
    ("no amounts", "consumedCapacity", None, "consumedCapacity.memory: missing"),
    (
        "no share",
        "consumedCapacity",
        {"memory": "1Gi", "cores": "1"},
        "consumedCapacity.share: missing",
    ),
    ("a list", "consumedCapacity", [], "consumedCapacity"),
)
def test_malformed_results_are_refused(field, value, words):
    with pytest.raises(MalformedInput, match=rf"results\[1\].{words}"):
        parsed(claim(FOREIGN, RESULT | {field: value}))


@pytest.mark.parametrize(
    "amounts",
    [
        {"memory": "1500k"},
        {"memory": "-1Gi"},
        {"memory": "lots"},
        {"memory": "2147483648Mi"},
        {"memory": "1" * 65},
        {"memory": 3000},
        {"cores": "101"},
        {"cores": "500m"},
        {"cores": "-1"},
        {"share": "101"},
        {"share": "1u"},
    ],
)
def test_amounts_that_no_slice_of_ours_leads_to_are_refused(amounts):
    (name,) = amounts
    with pytest.raises(MalformedInput, match=r"results\[0\].consumedCapacity"):
        parsed(claim(RESULT | {"consumedCapacity": RESULT["consumedCapacity"] | amounts}))


@cases(
    "config, priority, policy",
    ("none", [], None, None),
    ("a class may lift limits", [setting(priority=0, corePolicy="disable")], 0, CorePolicy.DISABLE),
    (
        "a claim may not",
        [setting("FromClaim", priority=2, corePolicy="force")],
        2,
        CorePolicy.FORCE,
    ),
    (
        "a claim lowers what its class gives",
        [
            setting(priority=0, corePolicy="disable"),
            setting("FromClaim", priority=1, corePolicy="force"),
        ],
        1,
        CorePolicy.FORCE,
    ),
    ("a claim cannot raise it", [setting(priority=5), setting("FromClaim", priority=1)], 5, None),
    ("the last of a class counts", [setting(priority=5), setting(priority=3)], 3, None),
    ("of another driver", [setting(driver="gpu.nvidia.com", strategy="MPS")], None, None),
    ("of another request", [setting(requests=["other"], priority=0)], None, None),
    ("of this request", [setting(requests=["main"], priority=3)], 3, None),
)
def test_configurations(config, priority, policy):
    (allocated,) = parsed(claim(RESULT, config=config)).requests
    assert (allocated.priority, allocated.core_policy) == (priority, policy)


def test_a_configuration_may_be_that_of_a_subrequest():
    config = [setting(requests=["main/a"], priority=3), setting(requests=["main/b"], priority=4)]
    (allocated,) = parsed(claim(RESULT | {"request": "main/a"}, config=config)).requests
    assert allocated.priority == 3


@cases(
    "config, words",
    (
        "priority",
        setting("FromClaim", priority=0),
        "priority: expected 1 or more in a claim; a DeviceClass may give less: '0'",
    ),
    (
        "no limit of cores",
        setting("FromClaim", corePolicy="disable"),
        "corePolicy: expected force in a claim",
    ),
    (
        "less than the node's",
        setting("FromClaim", corePolicy="default"),
        "corePolicy: expected force in a claim",
    ),
    ("source", setting("FromPod"), "source: expected FromClass or FromClaim: 'FromPod'"),
    ("negative", setting(priority=-1), "priority: expected an integer from 0"),
    ("a text", setting(priority="0"), "priority: expected an integer from 0"),
    ("policy", setting(corePolicy="off"), "corePolicy"),
    ("unknown", setting(memory="1Gi"), "memory: expected one of"),
    ("version", setting(apiVersion="hami.io/v2"), "apiVersion: expected hami.io/v1: 'hami.io/v2'"),
    ("kind", setting(kind="Config"), "kind: expected ShareConfig"),
    (
        "none",
        {"source": "FromClass", "opaque": {"driver": "gpu.hami.io", "parameters": None}},
        "parameters",
    ),
)
def test_malformed_configurations_are_refused(config, words):
    with pytest.raises(
        MalformedInput, match=rf"config\[0\]\.(opaque\.parameters\.|opaque\.)?{words}"
    ):
        parsed(claim(RESULT, config=[config]))


@given(
    bodies(
        claim(
            RESULT,
            FOREIGN,
            config=[setting(priority=1)],
            reservedFor=[{"resource": "pods", "name": "pod1", "uid": "u1"}],
        )
    )
)
def test_any_text_is_a_claim_or_is_refused(data):
    try:
        result = parse_claim(data)
    except MalformedInput:
        return
    assert isinstance(result, AllocatedClaim)


@cases(
    "asked, fields",
    (
        "memory and cores",
        request(memory_mib=3000, cores=10),
        {"capacity": {"requests": {"memory": "3000Mi", "cores": "10"}}},
    ),
    ("memory", request(memory_mib=2048), {"capacity": {"requests": {"memory": "2Gi"}}}),
    ("the memory of a card is the default", request(memory_percent=100), {}),
    (
        "a card alone",
        request(memory_percent=100, cores=100),
        {"capacity": {"requests": {"cores": "100", "share": "100"}}},
    ),
    (
        "more cores than one card has",
        request(memory_mib=1000, cores=250),
        {"capacity": {"requests": {"memory": "1000Mi", "cores": "100", "share": "100"}}},
    ),
    (
        "count",
        request(count=2, memory_mib=1000),
        {"count": 2, "capacity": {"requests": {"memory": "1000Mi"}}},
    ),
    (
        "MiB take precedence",
        request(memory_mib=1000, memory_percent=50),
        {"capacity": {"requests": {"memory": "1000Mi"}}},
    ),
)
def test_requests(asked, fields):
    assert spec(main=asked) == exactly(**fields)


@cases(
    "selector, expressions",
    (
        Selector(use_types=("A100", 'x"y')),
        [
            'device.attributes["gpu.hami.io"].productName.lowerAscii().contains("a100") || '
            'device.attributes["gpu.hami.io"].productName.lowerAscii().contains("x\\"y")'
        ],
    ),
    (
        Selector(nouse_types=("T4",)),
        ['!(device.attributes["gpu.hami.io"].productName.lowerAscii().contains("t4"))'],
    ),
    (
        Selector(use_uuids=("GPU-1", "GPU-2")),
        ['device.attributes["gpu.hami.io"].uuid in ["GPU-1", "GPU-2"]'],
    ),
    (Selector(nouse_uuids=("GPU-x",)), ['!(device.attributes["gpu.hami.io"].uuid in ["GPU-x"])']),
    (
        Selector(mode="hami-core,mps"),
        ['"hami-core,mps".contains(device.attributes["gpu.hami.io"].mode)'],
    ),
    (Selector(nouse_types=(), nouse_uuids=()), []),
)
def test_selectors(selector, expressions):
    (found,) = spec(selector, main=request(memory_percent=100))["devices"]["requests"]
    assert [
        item["cel"]["expression"] for item in found["exactly"].get("selectors", ())
    ] == expressions


def test_a_percentage_is_a_choice_among_the_sizes_of_cards():
    assert spec(
        Selector(mode="mps"), sizes=[15360, 81920], main=request(memory_percent=50, cores=10)
    ) == {
        "devices": {
            "requests": [
                {
                    "name": "main",
                    "firstAvailable": [
                        {
                            "name": f"m{size}",
                            "deviceClassName": "gpu.hami.io",
                            "count": 1,
                            "selectors": [
                                {
                                    "cel": {
                                        "expression": f'device.attributes["gpu.hami.io"].memoryMiB == {size}'
                                    }
                                },
                                {
                                    "cel": {
                                        "expression": '"mps".contains(device.attributes["gpu.hami.io"].mode)'
                                    }
                                },
                            ],
                            "capacity": {"requests": {"memory": memory, "cores": "10"}},
                        }
                        for size, memory in ((81920, "40Gi"), (15360, "7680Mi"))
                    ],
                }
            ]
        }
    }


def test_numa_bind_is_about_the_cards_of_each_container():
    asked = spec(numa_bind=True, one=request(count=2), two=request(), three=request(count=3))
    assert asked["devices"]["constraints"] == [
        {"requests": [name], "matchAttribute": "resource.kubernetes.io/numaNode"}
        for name in ("one", "three")
    ]


def test_each_container_has_a_request_of_its_name():
    asked = spec(b=request(memory_mib=1), a=request(memory_mib=2))
    assert [part["name"] for part in asked["devices"]["requests"]] == ["b", "a"]


@cases(
    "asked, options, words",
    ("vendor", request(vendor="DCU"), {}, "NVIDIA GPUs only, not for DCU"),
    ("count", request(count=33), {}, "at most 32 GPUs"),
    (
        "sizes",
        request(memory_percent=50),
        {"sizes": range(1, 10)},
        "at most 8 different sizes, there are 9",
    ),
    ("no sizes", request(memory_percent=50), {"sizes": ()}, "there is no GPU yet"),
    (
        "long list",
        request(),
        {"selector": Selector(use_uuids=("x",) * 65)},
        "at most 64 types or UUIDs",
    ),
    (
        "long item",
        request(),
        {"selector": Selector(nouse_types=("x" * 65,))},
        "at most 64 characters",
    ),
    ("long mode", request(), {"selector": Selector(mode="x" * 65)}, "at most 64 characters"),
    ("nothing", request(), {"selector": Selector(use_types=())}, "empty list"),
)
def test_what_a_claim_cannot_say(asked, options, words):
    with pytest.raises(Inexpressible, match=words):
        spec(main=asked, **options)


def test_a_whole_card_needs_no_sizes():
    asked = request(memory_percent=100, cores=100)
    assert spec(sizes=(), main=asked) == spec(main=asked)
