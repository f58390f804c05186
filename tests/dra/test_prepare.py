"""Claims that are prepared on a node."""

import os
import random
import re
from contextlib import suppress

import pytest
from pytest import param

from hami.codec.keys import CORES_LIMIT, GPU_ALLOCATED
from hami.dra.guard import excess
from hami.errors import ClusterError, HamiError, HostError, MalformedInput, Rejected
from hami.node.container_specs import ContainerSpecs
from hami.node.host import MIN_AGE_S
from hami.node.refusals import CLAIM_REFUSALS
from testing.cases import cases
from testing.claim_stage import A, B, ClaimStage, result


@pytest.fixture
def stage(tmp_path):
    return ClaimStage(tmp_path)


def test_containers_get_what_was_allocated_to_the_request_of_their_name(stage):
    claim = stage.put(
        "p",
        result("left", memory=3000, cores=30),
        result("right", B, 1),
        result("right", A, 2),
        containers=("left", "right"),
    )
    assert [
        (device.request, device.device, device.share_id, device.cdi_device)
        for device in stage.claims.prepare(*claim)
    ] == [
        ("left", "gpu-aaaa", "share-left", "hami.io/claim=claim-p_left"),
        ("right", "gpu-bbbb", "share-right", "hami.io/claim=claim-p_right"),
        ("right", "gpu-aaaa", "share-right", ""),
    ]
    left, right = (stage.env("claim-p", name) for name in ("left", "right"))
    assert (
        left["NVIDIA_VISIBLE_DEVICES"],
        left["CUDA_DEVICE_MEMORY_LIMIT_0"],
        left["CUDA_DEVICE_SM_LIMIT"],
    ) == (A, "3000m", "30")
    assert (
        right["NVIDIA_VISIBLE_DEVICES"],
        right["CUDA_DEVICE_MEMORY_LIMIT_0"],
        right["CUDA_DEVICE_MEMORY_LIMIT_1"],
    ) == (f"{A},{B}", "2m", "1m")
    assert f"device {A} memory={3000 << 20} cores=30" in stage.limits("uid-p", "left")


def test_the_name_of_a_subrequest_is_no_part_of_that_of_the_container(stage):
    (device,) = stage.claims.prepare(*stage.put("p", result("main/m81920")))
    assert (device.request, device.cdi_device) == ("main", "hami.io/claim=claim-p_main")


def test_a_claim_for_an_extended_resource_is_for_the_container_of_its_number(stage):
    stage.claims.prepare(
        *stage.put("p", result("container-1-request-0"), containers=("init", "main"))
    )
    assert stage.env("claim-p", "container-1-request-0")["NVIDIA_VISIBLE_DEVICES"] == A
    assert f"device {A} memory={1000 << 20} cores=100" in stage.limits("uid-p", "main")


def test_a_pod_with_too_many_claims_is_refused(stage):
    """Nobody could say which containers to check, in strict mode."""
    claim = stage.put()
    stage.specify(
        "p",
        {"main": {}},
        claims={"gpu": "p-hami"} | {f"c{number}": "other" for number in range(64)},
    )
    with pytest.raises(MalformedInput, match="resourceClaims"):
        stage.claims.prepare(*claim)


def test_a_pod_whose_claim_is_refused_again_and_again_is_told_once(stage):
    refused = []
    stage.claims.refusals.listeners.append(
        lambda ref, reason, card: refused.append((ref.name, reason, card))
    )

    def prepare(claim, times):
        for _ in range(times):
            with suppress(Rejected):
                stage.claims.prepare(*claim)

    gone = stage.put("gone", result(uuid="GPU-gone"))
    prepare(gone, CLAIM_REFUSALS - 1)
    prepare(stage.put("well"), CLAIM_REFUSALS)
    assert refused == []
    prepare(gone, CLAIM_REFUSALS)
    ((pod, reason, card),) = refused
    assert (pod, card) == ("gone", "GPU-gone")
    assert "device hami/n1/gpu-gone is not on this node. If that lasts, delete the pod" in reason


def test_a_claim_of_hamis_scheduler_on_a_card_that_is_gone_is_counted_as_refused(stage):
    refused = []
    stage.claims.refusals.listeners.append(lambda ref, reason, card: refused.append(reason))
    allocated = {GPU_ALLOCATED: "GPU-gone,NVIDIA,1000,0:;"}
    claim = stage.put("p", result(uuid="GPU-gone"), annotations=allocated, claim="p-hami")
    for _ in range(CLAIM_REFUSALS):
        with pytest.raises(Rejected, match="GPU-gone"):
            stage.claims.prepare(*claim)
    assert len(refused) == 1


def setting(*requests, **parameters):
    return {
        "source": "FromClass",
        "requests": requests,
        "opaque": {
            "driver": "gpu.hami.io",
            "parameters": {"apiVersion": "hami.io/v1", "kind": "ShareConfig", **parameters},
        },
    }


# ---- requests of which the containers share


def same(env):
    """The variables of a specification, except for that which tells the requests of one container apart."""
    return {name: value for name, value in env.items() if name != "HAMI_CLAIM"}


def test_containers_that_use_one_request_share_its_limit(stage):
    claim = stage.put(
        "p",
        result("gpu", memory=3000, cores=30),
        containers=("a", "b"),
        uses={"a": ["gpu"], "b": ["gpu"]},
    )
    (device,) = stage.claims.prepare(*claim)
    assert device.cdi_device == "hami.io/claim=claim-p_gpu"
    assert f"device {A} memory={3000 << 20} cores=30" in stage.limits("uid-p", "a")
    assert [path.name for path in (stage.folder / "vgpu" / "containers").iterdir()] == ["uid-p_a"]


@cases("second, cores", ("sum", 20, 50), ("no limit", 0, 100))
def test_a_container_that_uses_several_requests_gets_their_sum(stage, second, cores):
    """Of its specifications the last one counts, so all say the same."""
    claim = stage.put(
        "p",
        result("x", memory=3000, cores=30),
        result("y", memory=500, cores=second),
        result("y", B, 7),
        result("z", memory=1),
        containers=("main", "z"),
        uses={"main": ["y", "x"], "z": ["z"]},
    )
    answer = stage.claims.prepare(*claim)
    assert [device.cdi_device for device in answer] == [
        "hami.io/claim=claim-p_x",
        "hami.io/claim=claim-p_y",
        "",
        "hami.io/claim=claim-p_z",
    ]
    x, y, z = (stage.env("claim-p", name) for name in "xyz")
    assert same(x) == same(y) != same(z)
    assert (
        x["NVIDIA_VISIBLE_DEVICES"],
        x["CUDA_DEVICE_MEMORY_LIMIT_0"],
        x["CUDA_DEVICE_MEMORY_LIMIT_1"],
    ) == (f"{A},{B}", "3500m", "7m")
    assert f"device {A} memory={3500 << 20} cores={cores}" in stage.limits("uid-p")
    assert [
        [share.memory_mib for share in request.shares] for request in stage.claims.prepared()
    ] == [[3000], [500, 7], [1]]
    assert stage.claims.prepare(*claim) == answer
    assert [stage.env("claim-p", name) for name in "xyz"] == [x, y, z]
    stage.specs.remove("claim-p_x")  # so is what it shares with the other
    assert stage.claims.prepare(*claim) == answer
    assert same(stage.env("claim-p", "x")) == same(stage.env("claim-p", "y")) != same(x)
    assert stage.env("claim-p", "z") == z


def test_a_request_that_no_container_uses_is_taken_and_given_to_nobody(stage):
    claim = stage.put("p", result(), result("spare", B, memory=81_000), uses={"main": ["main"]})
    assert len(stage.claims.prepare(*claim)) == 2
    assert stage.env("claim-p", "spare").keys() == {"HAMI_CLAIM"}
    before = stage.env("claim-p")
    assert len(stage.claims.prepare(*claim)) == 2
    assert stage.env("claim-p") == before
    with pytest.raises(HamiError, match=f"needs 1000 MiB of memory of {B}"):
        stage.claims.prepare(*stage.put("q", result(uuid=B)))
    stage.claims.unprepare("claim-p")
    assert stage.specs.names() == set()


def test_requests_of_one_container_have_the_same_parameters(stage):
    claim = stage.put(
        "p",
        result("a"),
        result("x"),
        result("y"),
        containers=("a", "main"),
        uses={"a": ["a"], "main": ["x", "y"]},
        setting=setting("x", corePolicy="force"),
    )
    with pytest.raises(
        HamiError,
        match="claim default/p-hami: container main uses requests with different parameters",
    ):
        stage.claims.prepare(*claim)
    assert stage.specs.names() == set()
    stage.claims.prepare(
        *stage.put(
            "p",
            result("x"),
            result("y"),
            uses={"main": ["x", "y"]},
            setting=setting(corePolicy="force"),
        )
    )
    assert "policy force" in stage.limits("uid-p")


@cases("user, why", ("main", "container main of pod p uses claims p-hami and q-hami"), ("b", ""))
def test_a_container_uses_one_claim(stage, user, why):
    first = stage.put("p", containers=("main", "b"))
    second = "default", "q-hami", "claim-q"
    stage.put("q", result("other"), containers=("main", "b"), pods=["uid-p"])
    stage.resources.claims[second[:2]]["status"]["reservedFor"][0]["name"] = "p"
    stage.specify(
        "p",
        {
            one: {
                "resources": {
                    "claims": [
                        *([{"name": "gpu"}] if one == "main" else ()),
                        *([{"name": "more"}] if one == user else ()),
                    ]
                }
            }
            for one in ("main", "b")
        },
        claims={"gpu": "p-hami", "more": "q-hami"},
    )
    stage.claims.prepare(*first)
    if not why:
        assert stage.claims.prepare(*second)
        return
    with pytest.raises(HamiError, match=why):
        stage.claims.prepare(*second)
    assert stage.specs.names() == {"claim-p_main"}


def test_priority_and_core_policy_of_the_class_replace_those_of_the_container(stage):
    stage.cluster.environments["uid-p", "main"] = {
        "CUDA_TASK_PRIORITY": "5",
        "GPU_CORE_UTILIZATION_POLICY": "disable",
    }
    stage.claims.prepare(*stage.put("p", setting=setting(priority=0, corePolicy="force")))
    assert {"priority 0", "policy force"} < set(stage.limits("uid-p"))


@cases(
    "text, most",
    ("more than it has booked", "60", " cores-most=60"),
    ("less", "20", " cores-most=30"),
    ("all", "100", ""),
    ("unreadable", "much", ""),
)
def test_a_container_of_a_claim_may_use_what_its_pod_says_while_no_other_does(stage, text, most):
    stage.claims.prepare(*stage.put("p", result(cores=30), annotations={CORES_LIMIT: text}))
    assert f"device {A} memory={1000 << 20} cores=30{most}" in stage.limits("uid-p")


def test_variables_that_a_container_may_choose_are_not_replaced(tmp_path):
    stage = ClaimStage(tmp_path, log_level="1", disable_core_limit=True)
    stage.cluster.environments["uid-p", "main"] = {
        "LIBCUDA_LOG_LEVEL": "4",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "9m",
    }
    stage.claims.prepare(*stage.put())
    env = stage.env("claim-p")
    assert "LIBCUDA_LOG_LEVEL" not in env
    assert (env["GPU_CORE_UTILIZATION_POLICY"], env["CUDA_DEVICE_MEMORY_LIMIT_0"]) == (
        "disable",
        "1000m",
    )


# ---- claims that the scheduler makes


def put_own(stage, *results, text):
    """Creates a pod that is bound with the allocation *text*, and a claim with *results* that is its own."""
    return stage.put(
        "p",
        *results,
        containers=("init", "main"),
        claim="p-hami",
        annotations={"hami.io/vgpu-devices-allocated": text},
    )


@cases(
    "results",
    ("another card", [result(uuid=B, memory=9999)]),
    ("another amount", [result(memory=2000)]),
    ("another node", [result(pool="hami/n2")]),
    ("another container", [result("init")]),
    ("one more", [result(), result("init", B)]),
)
def test_the_annotations_of_a_pod_decide_what_its_own_claim_gives(stage, caplog, results):
    """An attempt to bind the pod has written the claim, but another one has bound it."""
    claim = put_own(stage, *results, text=f";{A},NVIDIA,1000,20:;")
    (device,) = stage.claims.prepare(*claim)
    assert (device.request, device.pool, device.device) == ("main", "hami/n1", "gpu-aaaa")
    assert stage.env("claim-p")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1000m"
    assert f"device {A} memory={1000 << 20} cores=20" in stage.limits("uid-p")
    assert "claim differs from the annotations of its pod" in caplog.text
    assert stage.claims.prepare(*claim) == [device]


def test_an_own_claim_that_agrees_with_its_pod_is_prepared_as_it_is(stage, caplog):
    """Also if a card had another number of slots when it was allocated."""
    claim = put_own(stage, result(cores=20, share=25), text=f";{A},NVIDIA,1000,20:;")
    (device,) = stage.claims.prepare(*claim)
    assert device.share_id == "share-main"
    assert not caplog.text
    assert stage.claims.prepared()[0].shares[0].share_milli == 25_000


@cases("text", ("allocated", f";{A},NVIDIA,1000,20:;"), ("not allocated", ""))
def test_annotations_do_not_decide_about_claims_of_users(stage, text):
    claim = stage.put(
        "p",
        result(memory=500),
        annotations={"hami.io/vgpu-devices-allocated": text},
        claim="" if text else "p-hami",
    )
    stage.claims.prepare(*claim)
    assert stage.env("claim-p")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "500m"


@cases(
    "text, error, why",
    (";GPU-gone,NVIDIA,1,0:;", Rejected, "GPU-gone"),
    (";x,1:;", MalformedInput, "format error"),
)
def test_annotations_that_no_card_can_meet_are_refused(stage, text, error, why):
    claim = put_own(stage, text=text)
    with pytest.raises(error, match=why):
        stage.claims.prepare(*claim)


# ---- again


@cases("restarted", ("by the same process", False), ("by another one", True))
def test_what_is_prepared_stays_as_it_is(stage, restarted):
    claim = stage.put()
    answer, before = stage.claims.prepare(*claim), stage.env("claim-p")
    if restarted:
        stage.restart()
    assert stage.claims.prepare(*claim) == answer
    assert stage.env("claim-p") == before


@pytest.mark.parametrize("lost", ["specification", "limits", "content of the limits"])
def test_what_is_lost_is_prepared_anew(stage, lost):
    claim = stage.put()
    answer, before = stage.claims.prepare(*claim), stage.env("claim-p")
    limits = stage.folder / "vgpu" / "containers" / "uid-p_main" / "limits"
    if lost == "specification":
        stage.specs.remove("claim-p_main")
    else:
        limits.unlink()
    if lost == "content of the limits":
        limits.touch()
    assert stage.claims.prepare(*claim) == answer
    assert (
        stage.env("claim-p")["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
        != before["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    )


@cases(
    "memory_by, installed, hooks",
    ("the limiter alone", "limiter", True, 0),
    ("both", "both", True, 1),
    ("both, without the program", "both", False, 0),
)
def test_the_driver_limits_the_memory_of_a_container_with_a_claim(
    tmp_path, memory_by, installed, hooks
):
    stage = ClaimStage(tmp_path, memory_by=memory_by)
    if installed:
        (stage.folder / "vgpu" / "hami-memory-wall").touch()
    stage.claims.prepare(*stage.put())
    (device,) = stage.specs.read("claim-p_main")["devices"]
    found = device["containerEdits"].get("hooks", [])
    assert len(found) == hooks
    for hook in found:
        assert hook["hookName"] == "createRuntime"
        assert hook["args"][-2] == "--limit"


def test_no_claim_waits_for_the_disk(stage, monkeypatch):
    """One at a time is written, so all others would wait, too."""
    monkeypatch.setattr(os, "fsync", lambda file: pytest.fail("waits for the disk"))
    assert stage.claims.prepare(*stage.put())


def test_a_claim_that_was_allocated_again_is_prepared_anew(stage):
    stage.claims.prepare(*stage.put())
    claim = stage.put("p", result(memory=2000))
    stage.claims.prepare(*claim)
    assert stage.env("claim-p")["CUDA_DEVICE_MEMORY_LIMIT_0"] == "2000m"


@cases("gone", ("while it exists", False), ("when it is gone", True))
def test_a_claim_is_unprepared_any_number_of_times(stage, gone):
    for name in "pq":
        stage.claims.prepare(*stage.put(name))
    if gone:
        stage.delete("p")
    for _ in range(2):
        stage.claims.unprepare("claim-p")
        assert stage.specs.names() == {"claim-q_main"}


def test_a_claim_of_which_a_part_could_not_be_written_is_completed(stage):
    claim = stage.put("p", result("main"), result("side"), containers=("main", "side"))
    (stage.folder / "vgpu" / "containers").mkdir()
    blocked = stage.folder / "vgpu" / "libvgpu.so"
    stage.claims.prepare(*claim)
    stage.specs.remove("claim-p_side")
    blocked.unlink()
    with pytest.raises(HostError, match="not installed"):
        stage.claims.prepare(*claim)
    before = stage.env("claim-p", "main")
    blocked.touch()
    assert len(stage.claims.prepare(*claim)) == 2
    assert stage.env("claim-p", "main") == before


def test_a_specification_is_read_again_only_when_it_has_changed(stage, monkeypatch):
    read, names = ContainerSpecs.read, []
    monkeypatch.setattr(
        ContainerSpecs, "read", lambda specs, name: names.append(name) or read(specs, name)
    )
    for name in "pqr":
        stage.claims.prepare(*stage.put(name))
    assert names == ["claim-p_main", "claim-q_main"]
    first = stage.claims
    stage.restart()
    stage.claims.prepare(*stage.put("p", result(memory=2000)))
    stage.claims.unprepare("claim-q")
    names.clear()
    assert [
        (request.name, request.shares[0].memory_mib)
        for _ in range(2)
        for request in first.prepared()
    ] == [("claim-p_main", 2000), ("claim-r_main", 1000)] * 2
    assert names == ["claim-p_main", "claim-r_main"]


# ---- refusals


@pytest.mark.parametrize(
    "fields, why",
    [
        param({"uid": "another"}, "is another", id="another claim of the name"),
        param(
            {"containers": ("a",)},
            "request main of claim default/p-hami: no container of pod p uses it",
            id="no such container",
        ),
        param(
            {"results": [result("container-2-request-0")]},
            "no container of pod p uses it",
            id="no such number",
        ),
        param({"pods": ("uid-p", "uid-q")}, "reserved for 2 pods", id="two pods"),
        param({"pods": ("uid-q",)}, "is not on this node", id="another pod of the name"),
    ],
    ids=str,
)
def test_a_claim_for_something_else_is_refused(stage, fields, why):
    namespace, name, _ = stage.put("p", *fields.pop("results", ()), **fields)
    with pytest.raises(HamiError, match=why):
        stage.claims.prepare(namespace, name, "claim-p")
    assert stage.specs.names() == set()


@cases(
    "changed, why",
    ("another node", {"pool": "hami/n2"}, "device hami/n2/gpu-aaaa is not on this node"),
    ("unknown card", {"device": "gpu-cccc"}, "gpu-cccc is not on this node"),
    ("admin", {"adminAccess": True}, "adminAccess is not supported"),
    ("hostile request", {"request": "../../etc"}, "the name of a request"),
    ("hostile device", {"device": "../gpu"}, "63 characters"),
    (
        "hostile memory",
        {"consumedCapacity": {"memory": "1e99", "cores": "0", "share": "10"}},
        "request policy",
    ),
    ("no memory", {"consumedCapacity": {}}, "memory: missing"),
    (
        "too much",
        {"consumedCapacity": {"memory": "81921Mi", "cores": "0", "share": "10"}},
        "which has 81920",
    ),
    ("another driver", {"driver": "other.example.com"}, "no devices of this driver"),
)
def test_a_result_that_cannot_be_is_refused(stage, changed, why):
    claim = stage.put("p", result() | changed)
    with pytest.raises(HamiError, match=why):
        stage.claims.prepare(*claim)
    assert stage.specs.names() == set()


def test_hostile_parameters_are_refused(stage):
    hostile = setting(priority=0)
    claim = stage.put("p", setting=hostile | {"source": "FromClaim"})
    with pytest.raises(MalformedInput, match="priority"):
        stage.claims.prepare(*claim)


def test_a_uid_that_is_no_name_of_a_file_is_refused(stage):
    with pytest.raises(HamiError):
        stage.claims.prepare(*stage.put(uid="../../etc"))
    stage.claims.unprepare("../../etc")


@cases(
    "given, needs",
    ("memory", {"memory": 41000}, "41000 MiB of memory"),
    ("cores", {"cores": 60}, "60 % of the cores"),
    ("share", {"share": 60}, "60000 thousandths of its share"),
)
def test_what_exceeds_a_card_is_refused_with_the_names_of_both_claims(stage, given, needs):
    stage.claims.prepare(*stage.put("p", result(**given)))
    claim = stage.put("q", result(**given))
    with pytest.raises(
        HamiError, match=f"claim default/q-hami needs {needs} of {A}.*claim default/p-hami has"
    ):
        stage.claims.prepare(*claim)
    stage.claims.unprepare("claim-p")
    assert stage.claims.prepare(*claim)


def test_scaled_memory_can_be_prepared(tmp_path):
    stage = ClaimStage(tmp_path, device_memory_scaling=2.0)
    for name in "pq":
        assert stage.claims.prepare(*stage.put(name, result(memory=81920)))


@pytest.mark.parametrize("seed", range(30))
def test_no_card_ever_gives_more_than_it_has(tmp_path, seed):
    """Random claims come and go in random order, by random processes."""
    rng, stage, held = random.Random(seed), ClaimStage(tmp_path), {}
    for number in range(40):
        if held and rng.random() < 0.3:
            stage.claims.unprepare(held.pop(rng.choice(list(held))))
        if rng.random() < 0.1:
            stage.restart()
        uuids = rng.sample((A, B), rng.choice((1, 1, 2)))
        claim = stage.put(
            f"p{number}",
            *(
                result(
                    "main",
                    uuid,
                    rng.choice((1, 20_000, 50_000)),
                    rng.choice((0, 40)),
                    rng.choice((10, 30, 100)),
                )
                for uuid in uuids
            ),
        )
        try:
            stage.claims.prepare(*claim)
        except HamiError:
            assert f"{claim[2]}_main" not in stage.specs.names()
        else:
            held[claim[1]] = claim[2]
        for uuid in (A, B):
            shares = [
                share
                for request in stage.claims.prepared()
                for share in request.shares
                if share.uuid == uuid
            ]
            assert sum(share.memory_mib for share in shares) <= 81920
            assert sum(share.cores for share in shares) <= 100
            assert sum(share.share_milli for share in shares) <= 100_000
    assert {f"{uid}_main" for uid in held.values()} == stage.specs.names()


def test_nothing_exceeds_nothing():
    assert excess([], [], {}) == ""


# ---- cleanup


def test_what_belongs_to_a_claim_that_is_gone_is_removed_after_some_minutes(stage):
    for name in "pqr":
        stage.claims.prepare(*stage.put(name))
    stage.delete("p")
    stage.resources.claims.pop(("default", "q-hami"))  # its pod is there: it may still run
    stage.claims.sweep()
    stage.now += MIN_AGE_S + 1
    stage.claims.sweep()
    assert stage.specs.names() == {"claim-q_main", "claim-r_main"}


def test_nobody_asks_for_claims_whose_pods_are_there(stage):
    stage.claims.prepare(*stage.put())
    before = stage.resources.reads
    stage.claims.sweep()
    assert stage.resources.reads == before


def test_a_claim_that_comes_back_is_not_removed(stage):
    stage.claims.prepare(*stage.put())
    stage.delete("p")
    stage.claims.sweep()
    stage.put()
    stage.claims.sweep()
    stage.delete("p")
    stage.now += MIN_AGE_S + 1
    stage.claims.sweep()
    assert stage.specs.names() == {"claim-p_main"}


def test_nothing_is_removed_while_the_api_server_is_away(stage):
    stage.claims.prepare(*stage.put())
    stage.delete("p")
    stage.claims.sweep()
    stage.now += MIN_AGE_S + 1
    stage.resources.error = ClusterError("connection refused")
    with pytest.raises(ClusterError):
        stage.claims.sweep()
    assert stage.specs.names() == {"claim-p_main"}


# strict mode


def specified(stage, *containers, claims=None):
    """A claim whose pod has *containers*, the first of which is called main and uses it."""
    claim = stage.put("p", containers=("main", "beside"))
    first, *others = containers
    stage.specify("p", dict(zip(("main", "beside"), (USES | first, *others))), claims)
    return claim


def variable(name, value):
    return {"env": [{"name": name, "value": value}]}


USES = {"resources": {"claims": [{"name": "gpu"}]}}
LIFTS = [
    param({"envFrom": [{"secretRef": {"name": "s"}}]}, "envFrom", id="envFrom"),
    param(
        variable("CUDA_DISABLE_CONTROL", "true"), "env CUDA_DISABLE_CONTROL=true", id="no limiter"
    ),
    param(variable("LD_PRELOAD", "/x.so"), "env LD_PRELOAD=/x.so", id="preload"),
    param(
        variable("GPU_CORE_UTILIZATION_POLICY", "disable"),
        "env GPU_CORE_UTILIZATION_POLICY=disable",
        id="cores",
    ),
    param(
        {"volumeMounts": [{"name": "v", "mountPath": "/etc"}]},
        "volumeMounts[0].mountPath=/etc",
        id="volume",
    ),
]
SEES = [
    param(variable(name, "all"), f"env {name}=all", id=name)
    for name in ("NVIDIA_IMEX_CHANNELS", "NVIDIA_MIG_CONFIG_DEVICES")
]


@pytest.mark.parametrize("fields, field", [*LIFTS, *SEES])
def test_strict_mode_prepares_nothing_that_could_lift_limits(tmp_path, fields, field):
    stage = ClaimStage(tmp_path / "strict", strict=True)
    with pytest.raises(
        HamiError, match=re.escape(f"container main: {field} is not permitted in strict mode")
    ):
        stage.claims.prepare(*specified(stage, fields))
    assert stage.claims.prepared() == []
    lax = ClaimStage(tmp_path / "lax")
    assert lax.claims.prepare(*specified(lax, fields))


@pytest.mark.parametrize(
    "fields, field",
    [
        *LIFTS,
        *SEES,
        param(
            variable("NVIDIA_VISIBLE_DEVICES", "all"),
            "env NVIDIA_VISIBLE_DEVICES=all",
            id="all devices",
        ),
    ],
)
@cases("uses", ("uses it", USES), ("uses none", {}))
def test_strict_mode_looks_at_all_containers_of_the_pod(tmp_path, fields, field, uses):
    """One that does not use the claim may do what it may in a pod without devices."""
    stage = ClaimStage(tmp_path, strict=True)
    claim = specified(stage, {}, fields | uses)
    if not uses and (fields, field) in [row.values for row in LIFTS]:
        assert stage.claims.prepare(*claim)
        return
    reserved = "container beside sets NVIDIA_VISIBLE_DEVICES, which is reserved .* such as nvidia.com/gpumem"
    with pytest.raises(
        HamiError,
        match=reserved
        if "VISIBLE" in field and uses
        else re.escape(f"container beside: {field} is not permitted in strict mode"),
    ):
        stage.claims.prepare(*claim)


def test_strict_mode_leaves_containers_with_claims_of_others_alone(tmp_path):
    stage = ClaimStage(tmp_path, strict=True)
    nic = {"resources": {"claims": [{"name": "nic"}]}} | variable("LD_PRELOAD", "/x.so")
    assert stage.claims.prepare(
        *specified(stage, USES, nic, claims={"gpu": "p-hami", "nic": "p-nic"})
    )


def test_strict_mode_permits_what_admission_has_written(tmp_path):
    stage = ClaimStage(tmp_path, strict=True, gpu_core_policy="force")
    assert stage.claims.prepare(
        *specified(stage, USES | variable("GPU_CORE_UTILIZATION_POLICY", "force"))
    )
    with pytest.raises(HamiError, match="env GPU_CORE_UTILIZATION_POLICY=disable"):
        stage.claims.prepare(
            *specified(stage, USES | variable("GPU_CORE_UTILIZATION_POLICY", "disable"))
        )


def test_what_strict_mode_hides_of_containers_without_a_request_is_visible_by_a_claim(stage):
    """A user's own wish for the limits alone counts where containers request resources."""
    claim = stage.put("p")
    stage.cluster.environments["uid-p", "main"] = {"NVIDIA_VISIBLE_DEVICES": "none"}
    stage.claims.prepare(*claim)
    assert stage.env("claim-p", "main")["NVIDIA_VISIBLE_DEVICES"] == A
