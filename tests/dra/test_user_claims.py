"""The text of a pod whose claims users have written, in the words of the device plugin."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis.strategies import randoms

from hami.codec.claim_spec import render_claim_spec
from hami.codec.device_config import DeviceConfig, NvidiaConfig
from hami.codec.pods import convert_pod
from hami.dra.hami_claims import give_claim
from hami.dra.pod_claims import with_claim
from hami.dra.shared_requests import share_requests
from hami.dra.user_claims import plain_pod
from hami.errors import MalformedInput
from hami.vendors.catalog import vendors
from testing.builders import ONLY_NVIDIA
from testing.cases import cases
from testing.yaml_text import read_documents
from tests.dra.pods import NOUSE_UUID, OF, SIZES, TYPE, UUID, asking, limits, pod
from tests.dra.test_hami_claims import NAME, SCHEDULER, admitted, decided, some_pod

MODE, NUMA, SHARED = (
    "nvidia.com/vgpu-mode",
    "nvidia.com/numa-bind",
    {"nvidia.com/vgpu-mode": "hami-core,mps"},
)
WHOLE = limits(1, gpumem_percentage=100, gpucores=0)


IN_UNITS = vendors(
    DeviceConfig(
        nvidia=NvidiaConfig(
            memory_factor=2, default_memory=8, default_cores=5, overwrite_env=True, strict=True
        )
    )
)


def request(name="main", **exactly):
    return {"name": name, "exactly": {"deviceClassName": "gpu.hami.io", **exactly}}


def capacity(**amounts):
    return {"capacity": {"requests": amounts}}


def selecting(*expressions):
    return {"selectors": [{"cel": {"expression": expression}} for expression in expressions]}


def using(name, *requests, **fields):
    """A container that uses these requests of the claim; without any, all of it."""
    return {
        "name": name,
        "resources": {
            "claims": [{"name": "gpu", "request": each} for each in requests] or [{"name": "gpu"}]
        },
        **fields,
    }


def claiming(*containers, inits=(), **annotations):
    return pod(
        *containers or [using("main")],
        inits=inits,
        spec={"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "slice"}]},
        **annotations,
    )


def template(*requests, **devices):
    return {
        "metadata": {"name": "slice"},
        "spec": {"spec": {"devices": {"requests": list(requests), **devices}}},
    }


def plain(wire, *requests, catalog=ONLY_NVIDIA, **devices):
    """The pod, where its template has these requests."""
    return plain_pod(wire, {"slice": template(*requests, **devices)}.get, catalog, lambda: SIZES)


def in_words(wire, *requests, **devices):
    """The limits of the containers, and the annotations."""
    found = plain(wire, *requests, **devices).wire
    assert "resourceClaims" not in found["spec"]
    containers = [*found["spec"].get("initContainers", ()), *found["spec"]["containers"]]
    assert not [one for one in containers if "claims" in one.get("resources", {})]
    return (
        {
            one["name"]: one["resources"]["limits"]
            for one in containers
            if one.get("resources", {}).get("limits")
        },
        found["metadata"]["annotations"],
    )


@cases(
    "exactly, amounts",
    ({}, WHOLE),
    (capacity(memory="3000Mi", cores="30"), limits(1, gpumem=3000, gpucores=30)),
    (capacity(memory="1500k"), limits(1, gpumem=2, gpucores=0)),
    (capacity(memory="0"), limits(1, gpumem=1, gpucores=0)),
    (
        {"count": 2, "allocationMode": "ExactCount", **capacity(memory="1Gi")},
        limits(2, gpumem=1024, gpucores=0),
    ),
    (capacity(share="100"), limits(1, gpumem_percentage=100, gpucores=100)),
    (capacity(share="100", cores="100", memory="1Gi"), limits(1, gpumem=1024, gpucores=100)),
    (capacity(**{"gpu.hami.io/memory": "1Gi"}), limits(1, gpumem=1024, gpucores=0)),
)
def test_amounts(exactly, amounts):
    wire = claiming(team="a")
    before = json.dumps(wire)
    assert in_words(wire, request(**exactly)) == ({"main": amounts}, {"team": "a", **SHARED})
    assert json.dumps(wire) == before


def test_memory_is_rounded_up_to_units():
    (container,) = plain(claiming(), request(**capacity(memory="3001Mi")), catalog=IN_UNITS).wire[
        "spec"
    ]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpumem"] == "1501"


def parts(*amounts, name="main", **more):
    """A request with an alternative for each size of GPUs: amounts of memory in MiB."""
    return {
        "name": name,
        "firstAvailable": [
            {
                "name": f"m{size}",
                "deviceClassName": "gpu.hami.io",
                **selecting(f"{OF}.memoryMiB == {size}"),
                **capacity(memory=f"{memory}Mi"),
                **more,
            }
            for size, memory in amounts
        ],
    }


def test_an_alternative_for_each_size_is_a_percentage():
    halves = parts((81920, 40960), (46068, 23034), (15360, 7680), count=2)
    assert in_words(claiming(), halves) == (
        {"main": limits(2, gpumem_percentage=50, gpucores=0)},
        SHARED,
    )


def test_a_mig_instance_follows_from_its_memory():
    asked = request(**capacity(memory="20Gi")) | {"name": "main"}
    asked["exactly"]["deviceClassName"] = "mig.hami.io"
    assert in_words(claiming(), asked) == ({"main": limits(1, gpumem=20480)}, {MODE: "mig"})


@cases(
    "expressions, annotations",
    (
        [f'{OF}.productName.lowerAscii().contains("a100")', f'!({OF}.uuid in ["GPU-x"])'],
        {TYPE: "a100", NOUSE_UUID: "GPU-x"},
    ),
    ([f'{OF}.uuid=="GPU-1"'], {UUID: "GPU-1"}),
)
def test_selectors(expressions, annotations):
    assert in_words(claiming(), request(**selecting(*expressions))) == (
        {"main": WHOLE},
        {**annotations, **SHARED},
    )


EXAMPLE = Path(__file__).parents[2] / "examples/claim.yaml"
NUMA_NODE = "resource.kubernetes.io/numaNode"


@cases(
    "count, constraints, annotations",
    (2, [{"matchAttribute": NUMA_NODE}], {NUMA: "true"}),
    (
        2,
        [{"requests": ["main"], "matchAttribute": NUMA_NODE}, {"distinctAttribute": "uuid"}],
        {NUMA: "true"},
    ),
    (1, [{"matchAttribute": NUMA_NODE}], {}),
    (2, [{"requests": ["other"], "matchAttribute": NUMA_NODE}], {}),
    (2, [{"distinctAttribute": "gpu.hami.io/uuid"}], {}),
)
def test_constraints_of_one_request(count, constraints, annotations):
    assert in_words(claiming(), request(count=count), constraints=constraints)[1] == {
        **annotations,
        **SHARED,
    }


def test_the_claims_of_several_containers():
    wire = claiming(using("a", "x"), using("b", "y"), {"name": "log"})
    wire["spec"]["containers"].append(
        {"name": "c", "resources": {"claims": [{"name": "second"}], "limits": {"cpu": 1}}}
    )
    wire["spec"]["resourceClaims"].append({"name": "second", "resourceClaimTemplateName": "slice2"})
    templates = {
        "slice": template(request("x", **capacity(memory="1Gi")), request("y")),
        "slice2": template(request("x")),
    }
    found = plain_pod(wire, templates.get, ONLY_NVIDIA, lambda: SIZES)
    assert found.users is None
    assert [one.get("resources") for one in found.wire["spec"]["containers"]] == [
        {"limits": limits(1, gpumem=1024, gpucores=0)},
        {"limits": WHOLE},
        None,
        {"limits": {"cpu": 1, **WHOLE}},
    ]


def test_init_containers_use_the_devices_of_a_container_after_them():
    wire = claiming(
        using("a", "x"),
        using("b", "y"),
        inits=[using("early", "y"), using("side", "z", restartPolicy="Always")],
    )
    requests = [
        request("x"),
        request("y", **capacity(memory="1Gi")),
        request("z", **capacity(memory="2Gi")),
    ]
    assert plain(wire, *requests).users == {"early": "b", "a": "a", "b": "b", "side": "side"}
    assert in_words(wire, *requests)[0] == {
        "early": limits(1, gpumem=1024, gpucores=0),
        "side": limits(1, gpumem=2048, gpucores=0),
        "a": WHOLE,
        "b": limits(1, gpumem=1024, gpucores=0),
    }


NIC = request("nic") | {"exactly": {"deviceClassName": "nic.example.com"}}


@cases(
    "wire, requests",
    (pod({"name": "main"}), [request()]),
    (claiming(), [NIC]),
    (claiming(), []),
    (
        pod(
            using("main"), spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "slice"}]}
        ),
        [request()],
    ),
)
def test_pods_that_name_no_template_for_our_devices(wire, requests):
    assert plain(wire, *requests) is None


def test_a_named_claim_beside_it():
    wire = claiming()
    wire["spec"]["resourceClaims"].append({"name": "nic", "resourceClaimName": "nic"})
    with pytest.raises(MalformedInput, match=r"spec.resourceClaims nic: .* allocates no others"):
        plain(wire, request())


FIRST = {
    "name": "main",
    "firstAvailable": [{"name": name, "deviceClassName": "gpu.hami.io"} for name in "ab"],
}


@cases(
    "asked, reason",
    (FIRST, "spec.resourceClaims gpu: request main: firstAvailable: expected the same percentage"),
    (parts((81920, 40960), (46068, 1000)), "firstAvailable: expected the same percentage"),
    (parts((81920, 81920), (46068, 46068)), "firstAvailable: expected the same percentage"),
    (parts((81920, 40960), (15360, 7680)), "there are GPUs of 46068 MiB, for which it has no alt"),
    (
        {
            "name": "main",
            "firstAvailable": [
                {**each, "count": place + 1}
                for place, each in enumerate(parts((81920, 8), (46068, 8))["firstAvailable"])
            ],
        },
        "firstAvailable: expected the same percentage",
    ),
    (request(allocationMode="All"), "request main: allocationMode=All"),
    (request(adminAccess=True), "request main: adminAccess"),
    (request(tolerations=[{"operator": "Exists"}]), "request main: tolerations"),
    (request(**capacity(speed="1")), "request main: capacity speed"),
    (request(**capacity(cores="101")), "request main: capacity cores=101"),
    (request(**capacity(share="50")), "request main: capacity share=50, cores=0"),
    (request(**capacity(share="100", cores="30")), "request main: capacity share=100, cores=30"),
    (request(**capacity(memory="x")), "ResourceClaimTemplate slice: request main: capacity memory"),
    (
        request(deviceClassName="mig.hami.io"),
        "request main: a MIG instance follows from its memory",
    ),
    (
        request(
            deviceClassName="mig.hami.io",
            **capacity(memory="1Gi"),
            **selecting(f'{OF}.profile == "3g.40gb"'),
        ),
        "request main: a MIG instance",
    ),
    (request(**selecting(f"{OF}.memoryMiB == 81920")), "request main: selectors: expected lists"),
    (
        request(**selecting(f"{OF}.uuid in ['{'x' * 9000}']", *["true" * 2500] * 2)),
        "request main: selectors: 29045 characters, expected at most 24576",
    ),
    ("x", "ResourceClaimTemplate slice"),
)
def test_what_amounts_do_not_say_of_a_request(asked, reason):
    with pytest.raises(MalformedInput, match=re.escape(reason)):
        plain(claiming(), asked)


@cases(
    "wire, requests, reason",
    (claiming(), [request(), NIC], "request nic: deviceClassName=nic.example.com"),
    (
        claiming(using("a", "a"), using("b", "b")),
        [request("a"), request("b", **selecting(f'{OF}.uuid == "x"'))],
        "request b: it selects other devices than spec.resourceClaims gpu: request a",
    ),
    (
        claiming(using("a"), inits=[using("s", restartPolicy="Always")]),
        [request()],
        "containers s and a share spec.resourceClaims gpu: request main, and one of them is a sidecar",
    ),
    (claiming(using("a", "a", "b")), [request("a"), request("b")], "container a uses 2 requests"),
    (claiming(using("a", "a")), [request("a"), request("b")], "request b: no container uses it"),
    (
        claiming(using("a", "a"), using("b", "c")),
        [request("a")],
        "container b uses request c, which claim gpu does not have",
    ),
    (claiming({"name": "main"}, inits=[using("i")]), [request()], "container i uses"),
    (
        claiming({"name": "main"}, inits=[using("s", restartPolicy="Always"), using("i")]),
        [request()],
        "containers s and i share",
    ),
    (
        claiming(using("main"), asking("b", gpumem=1)),
        [request()],
        "container b: nvidia.com/gpumem beside a claim",
    ),
    (
        claiming(**{UUID: "GPU-1"}),
        [request(**selecting(f'{OF}.uuid == "GPU-2"'))],
        f"annotation {UUID}=GPU-1: the pod's claim says GPU-2",
    ),
    (claiming(**{MODE: "mig"}), [request()], f"annotation {MODE}=mig"),
)
def test_what_amounts_do_not_say_of_a_pod(wire, requests, reason):
    with pytest.raises(MalformedInput, match=re.escape(reason)):
        plain(wire, *requests)


TWO = claiming(using("a", "a"), using("b", "b"))


@cases(
    "wire, requests, devices, reason",
    (
        claiming(),
        [request()],
        {"config": [{"opaque": {"driver": "gpu.hami.io"}}]},
        "spec.resourceClaims gpu: config",
    ),
    (
        claiming(),
        [request()],
        {"constraints": [{"matchAttribute": "gpu.hami.io/productName"}]},
        "spec.resourceClaims gpu: matchAttribute gpu.hami.io/productName",
    ),
    (
        claiming(),
        [parts((81920, 40960), (46068, 23034), count=2)],
        {"constraints": [{"requests": ["main/m81920"], "matchAttribute": NUMA_NODE}]},
        "matchAttribute resource.kubernetes.io/numaNode",
    ),
    (
        TWO,
        [request("a"), request("b")],
        {"constraints": [{"distinctAttribute": "gpu.hami.io/uuid"}]},
        "distinctAttribute gpu.hami.io/uuid",
    ),
    (
        TWO,
        [request("a", count=2), request("b", count=2)],
        {"constraints": [{"requests": ["a"], "matchAttribute": NUMA_NODE}]},
        "request b: expected matchAttribute",
    ),
)
def test_what_amounts_do_not_say_of_a_claim(wire, requests, devices, reason):
    with pytest.raises(MalformedInput, match=re.escape(reason)):
        plain(wire, *requests, **devices)


def test_a_pod_names_few_templates():
    wire, asked = claiming(), []
    wire["spec"]["resourceClaims"] = [
        {"name": f"c{place}", "resourceClaimTemplateName": "slice"} for place in range(5)
    ]
    with pytest.raises(
        MalformedInput, match="spec.resourceClaims: 5 templates of claims, expected at most 4"
    ):
        plain_pod(wire, asked.append, ONLY_NVIDIA, lambda: SIZES)
    assert not asked


def test_a_template_that_does_not_exist():
    with pytest.raises(MalformedInput, match="ResourceClaimTemplate slice does not exist"):
        plain_pod(claiming(), {}.get, ONLY_NVIDIA, lambda: SIZES)


@cases("catalog", ("plain", ONLY_NVIDIA), ("with defaults", IN_UNITS))
@pytest.mark.parametrize("unit", ["gpumem", "gpumem_percentage"])
@given(rng=randoms(use_true_random=True))
def test_what_a_claim_says_of_a_pod_is_read_back(rng, unit, catalog):
    """A claim for what a pod requests, said in the words of the pod, requests what the pod did."""
    wire = some_pod(rng, unit)
    try:
        before = admitted(wire, catalog)
        request = decided(before, catalog)
        assume(request is not None)
        shared = share_requests(convert_pod(before), request)
        selector = request.vendor_request("NVIDIA").selector
        spec = render_claim_spec(
            shared.requests, selector, SIZES, numa_bind=request.policy.numa_bind
        )
        wire["metadata"]["annotations"] |= SHARED
        expected = give_claim(admitted(wire, catalog), catalog, "spread", NAME, SCHEDULER)
    except MalformedInput:
        assume(False)
    claiming = claiming_what(before, shared.users)
    try:
        found = plain_pod(claiming, {"slice": {"spec": {"spec": spec}}}.get, catalog, lambda: SIZES)
    except (
        MalformedInput
    ) as error:  # an init container has the devices of a container after it, or of none
        assert "container i" in str(error)
        return
    given = give_claim(
        admitted(found.wire, catalog), catalog, "spread", NAME, SCHEDULER, found.users
    )
    assert decided(given, catalog) == decided(expected, catalog)


def claiming_what(wire, users):
    """The pod whose containers use their requests of a claim in place of amounts."""
    claiming = with_claim(wire, NAME, ONLY_NVIDIA["NVIDIA"].resources.names, users, {})
    claiming["spec"]["resourceClaims"] = [{"name": "hami", "resourceClaimTemplateName": "slice"}]
    return claiming


def test_the_example_of_the_documentation():
    documents = read_documents(EXAMPLE.read_text())
    templates = {
        one["metadata"]["name"]: one for one in documents if one["kind"] == "ResourceClaimTemplate"
    }
    (wire,) = [one for one in documents if one["kind"] == "Pod"]
    found = plain_pod(wire, templates.get, ONLY_NVIDIA, lambda: SIZES)
    assert found.users == {"left": "left", "right": "left", "beside": "beside"}
