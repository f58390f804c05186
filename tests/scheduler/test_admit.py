"""Admission: which pods are denied and why, and what is changed in the others."""

import copy
import json
import sys

import pytest

from hami.codec.admission import Review, parse_review, render_allowed
from hami.codec.device_config import DeviceConfig, NvidiaConfig
from hami.codec.keys import ASSIGNED_NODE, BIND_PHASE, CORES_LIMIT
from hami.model import ScopeRequirement
from hami.scheduler.admit import MAX_RESOURCES, Admitted, Admitter, Denied
from hami.scheduler.settings import Settings
from hami.vendors.catalog import vendors
from hami.vendors.request import MAX_CONTAINERS
from testing.builders import NVIDIA, quota
from testing.cases import cases
from testing.replicas import Clock, Replica, WatchedCluster

SCHEDULER = "hami-scheduler"


def raw(*containers, scheduler="default-scheduler", inits=(), spec=None, meta=None):
    """A pod as the API server sends it."""
    made = {"containers": list(containers), "schedulerName": scheduler} | (spec or {})
    return {
        "metadata": {"name": "p"} | (meta or {}),
        "spec": made | ({"initContainers": list(inits)} if inits else {}),
    }


def asking(limits=None, **fields):
    return (
        {"name": "c"} | ({"resources": {"limits": limits}} if limits is not None else {}) | fields
    )


def gpu_limits(**amounts):
    return asking(
        {f"nvidia.com/{name.replace('_', '-')}": value for name, value in amounts.items()}
    )


ONE = {"nvidia.com/gpu": 1}
PRIVILEGED = {"securityContext": {"privileged": True}}
NAMES = {f"example.com/{n}": 1 for n in range(20_000)}


def admitter(*, force=True, name=SCHEDULER, quotas=(), **config):
    """The admission of an empty cluster."""
    clock, fake = Clock(), WatchedCluster()
    replica = Replica(fake, clock, vendors=vendors(DeviceConfig(nvidia=NvidiaConfig(**config))))
    for one in quotas:
        replica.cache.quotas.upsert(one)
    return Admitter(
        replica.cache.admissions,
        Settings(scheduler_name=name, force_overwrite_default_scheduler=force),
    )


def admit(thing, namespace="default", **options):
    return admitter(**options).admit(Review("u", namespace, thing, "v1", "AdmissionReview"))


@cases(
    "thing, options, code, message",
    (None, {}, 400, "there is no content to decode"),
    ({}, {}, 400, "there is no content to decode"),
    ({"spec": {"containers": "x"}}, {}, 400, "pod"),
    ({"metadata": {"annotations": {"a": 1}}, "spec": {"containers": [{}]}}, {}, 400, "pod"),
    (raw(), {}, 403, "pod has no containers"),
    ({"metadata": {}}, {}, 403, "pod has no containers"),
    (
        raw(gpu_limits(gpu=1, gpumem_percentage=120)),
        {},
        422,
        "invalid nvidia.com/gpumem-percentage value 120 in container c: must be an integer between 0 and 100",
    ),
    (
        raw(gpu_limits(gpu=1, gpumem_percentage=-1)),
        {},
        422,
        "invalid nvidia.com/gpumem-percentage value -1",
    ),
    (raw(gpu_limits(gpu=1, gpumem="1500m")), {}, 422, "invalid nvidia.com/gpumem value 1500m"),
    (raw(gpu_limits(gpu=1, gpumem="lots")), {}, 422, "lots"),
    (raw(gpu_limits(gpu=1, gpumem=2**31)), {}, 422, "must be an integer between 0 and 2147483647"),
    (
        raw(asking(), inits=[gpu_limits(gpu=1, gpumem_percentage=101)]),
        {},
        422,
        "value 101 in container c",
    ),
    (raw(asking(ONE, **PRIVILEGED)), {}, 403, "container c is privileged"),
    (
        raw(asking(ONE), inits=[asking(name="i", **PRIVILEGED)]),
        {},
        403,
        "container i is privileged",
    ),
    (raw(asking(ONE), spec={"nodeName": "n1"}), {}, 403, "pod has node assigned"),
    (
        raw(gpu_limits(gpu=1, gpumem=2000)),
        {"quotas": [quota(gpumem=1000)]},
        403,
        "exceeding resource quota",
    ),
    (
        raw(gpu_limits(gpu=1, gpumem=4000), inits=[gpu_limits(gpu=1, gpumem=30000)]),
        {"quotas": [quota(gpumem=24000)]},
        403,
        "exceeding resource quota",
    ),
    (
        raw(gpu_limits(gpu=1, gpucores=30)),
        {"quotas": [quota(gpucores=0)]},
        403,
        "exceeding resource quota",
    ),
)
def test_denied_pods_and_the_reason(thing, options, code, message):
    answer = admit(thing, **options)
    assert isinstance(answer, Denied)
    assert answer.code == code
    assert message in answer.message


@cases(
    "thing, options, message",
    (raw(asking(ONE), scheduler="volcano"), {}, "pod already has different scheduler assigned"),
    (
        raw(asking(ONE, **PRIVILEGED), scheduler="volcano", spec={"nodeName": "n1"}),
        {},
        "pod already has different scheduler assigned",
    ),
    (raw(asking(ONE)), {"force": False}, "pod already has different scheduler assigned"),
    (raw(asking(ONE), scheduler="x"), {"name": ""}, "pod already has different scheduler assigned"),
    (raw(asking()), {}, ""),
    (raw(asking(**PRIVILEGED)), {}, ""),
    (raw(asking(), spec={"nodeName": "n1"}), {}, ""),
    (raw(gpu_limits(gpu=1, gpumem=1, gpucores=1), scheduler=SCHEDULER), {}, ""),
    (raw(gpu_limits(gpu=1, gpumem=1, gpucores=1), scheduler=SCHEDULER), {"force": False}, ""),
)
def test_pods_that_are_admitted_unchanged(thing, options, message):
    answer = admit(thing, **options)
    assert isinstance(answer, Admitted)
    assert answer.pod is thing
    assert answer.message == message


@cases(
    "thing, options, scheduler, limits",
    (raw(asking(ONE)), {}, SCHEDULER, {"nvidia.com/gpu": 1, "nvidia.com/gpucores": "100"}),
    (
        raw(asking(ONE), scheduler=""),
        {},
        SCHEDULER,
        {"nvidia.com/gpu": 1, "nvidia.com/gpucores": "100"},
    ),
    (
        raw(asking(ONE)),
        {"name": ""},
        "default-scheduler",
        {"nvidia.com/gpu": 1, "nvidia.com/gpucores": "100"},
    ),
    (raw(gpu_limits(gpumem=10)), {}, SCHEDULER, {"nvidia.com/gpumem": 10, "nvidia.com/gpu": "1"}),
    (
        raw(gpu_limits(gpu=1, gpumem_percentage=100)),
        {},
        SCHEDULER,
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 100, "nvidia.com/gpucores": "100"},
    ),
    (
        raw(gpu_limits(gpu=1, gpumem=10), inits=[gpu_limits(gpu=1, gpumem=20000)]),
        {"quotas": [quota(gpumem=24000)]},
        SCHEDULER,
        {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10},
    ),
)
def test_admission_completes_a_pod(thing, options, scheduler, limits):
    answer = admit(thing, **options)
    assert isinstance(answer, Admitted)
    assert answer.pod["spec"]["schedulerName"] == scheduler
    assert answer.pod["spec"]["containers"][0]["resources"]["limits"] == limits


@cases("name, answer", ("high", Denied), ("low", Admitted), (None, Admitted))
def test_a_quota_with_scopes_denies_only_the_pods_in_them(name, answer):
    thing = raw(gpu_limits(gpu=1, gpumem=2000), spec={"priorityClassName": name})
    scopes = [ScopeRequirement("PriorityClass", "In", ("high",))]
    assert isinstance(admit(thing, quotas=[quota(gpumem=1000, scopes=scopes)]), answer)


def test_the_larger_of_init_and_app_containers_counts_for_the_quota():
    thing = raw(gpu_limits(gpu=1, gpumem=10000), inits=[gpu_limits(gpu=1, gpumem=20000)])
    assert isinstance(admit(thing, quotas=[quota(gpumem=24000)]), Admitted)


def test_the_quota_of_the_review_s_namespace_applies():
    thing = raw(gpu_limits(gpu=1, gpumem=2000), meta={"namespace": "other"})
    assert isinstance(admit(thing, quotas=[quota(gpumem=1000)]), Denied)


def test_unknown_fields_survive_admission():
    thing = raw(
        asking(ONE, newField={"a": [1]}),
        spec={"hostUsers": False, "fromTheFuture": 7},
        meta={"x": "y"},
    )
    after = admit(thing).pod
    assert after["metadata"] == thing["metadata"]
    assert after["spec"]["fromTheFuture"] == 7
    assert after["spec"]["containers"][0]["newField"] == {"a": [1]}


def test_admission_does_not_change_its_argument():
    thing = raw(asking({"nvidia.com/gpu": 1}))
    before = repr(thing)
    admit(thing)
    assert repr(thing) == before


@pytest.mark.parametrize("where", ["annotations", "labels"])
@pytest.mark.parametrize(
    "key",
    [
        ASSIGNED_NODE,
        "hami.io/vgpu-time",
        BIND_PHASE,
        "hami.io/bind-time",
        NVIDIA.annotations.to_allocate,
        NVIDIA.annotations.allocated,
        "hami.io/any-devices-allocated",
    ],
)
@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano"])
def test_scheduler_owned_keys_cannot_be_forged(where, key, scheduler):
    answer = admit(raw(asking(), meta={where: {key: "x"}}, scheduler=scheduler))
    assert isinstance(answer, Denied)
    assert answer.code == 403
    assert key in answer.message


def ephemeral(*containers, env=(), annotations=None, **options):
    """The verdict about a placed pod that gets an ephemeral container; the pod if it is changed."""
    debug = {"name": "debug", "image": "x"} | ({"env": list(env)} if env else {})
    spec = {"ephemeralContainers": [debug], "nodeName": "n1"}
    notes = {ASSIGNED_NODE: "n1"} | (annotations or {})
    thing = raw(*containers, scheduler=SCHEDULER, spec=spec, meta={"annotations": notes})
    review = Review("u", "default", thing, "v1", "AdmissionReview", "ephemeralcontainers")
    verdict = admitter(**options).admit(review)
    return verdict.message if isinstance(verdict, Denied) else verdict.pod is thing or verdict.pod


def test_a_pod_with_devices_gets_no_ephemeral_container_in_strict_mode():
    assert ephemeral(asking(), asking(ONE), strict=True) == (
        "ephemeralContainers are not permitted in strict mode on a pod that requests devices"
    )
    assert ephemeral(asking(), asking(ONE)) is ephemeral(asking()) is True


HIDDEN = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}


@cases(
    "name, value, is_refused",
    ("NVIDIA_VISIBLE_DEVICES", "all", True),
    ("NVIDIA_VISIBLE_DEVICES", "none", False),
    ("CUDA_DEVICE_MEMORY_LIMIT", "80g", True),
    ("CUDA_DEVICE_SM_LIMIT_1", "100", True),
    ("CUDA_OVERSUBSCRIBE", "true", True),
    ("LD_PRELOAD", "x.so", False),
)
def test_an_ephemeral_container_sets_nothing_that_is_reserved_in_a_pod_with_devices(
    name, value, is_refused
):
    env = [{"name": name, "value": value}]
    verdict = ephemeral(asking(ONE), env=env)
    if is_refused:
        assert verdict.startswith(f"container debug sets {name}, which is reserved")
    else:
        assert verdict is True
    assert ephemeral(asking(), env=env) is True
    assert ephemeral(asking({"nvidia.com/gpu": 0}), env=env) is True


@cases(
    "annotations, config, is_hidden",
    ({}, {"overwrite_env": True}, True),
    ({}, {}, False),
    ({"hami.io/overwrite-env": "true"}, {}, True),
    ({"hami.io/overwrite-env": "false"}, {"overwrite_env": True}, False),
    ({"hami.io/overwrite-env-containers": '{"debug": "true"}'}, {}, True),
    ({"hami.io/overwrite-env-containers": '{"c": "true"}'}, {}, False),
)
@pytest.mark.parametrize("limits", [None, ONE], ids=str)
def test_an_ephemeral_container_sees_no_devices_where_others_without_a_request_see_none(
    annotations, config, is_hidden, limits
):
    verdict = ephemeral(asking(limits), annotations=annotations, **config)
    if is_hidden:
        (made,) = verdict["spec"]["ephemeralContainers"]
        assert made["env"] == [HIDDEN]
    else:
        assert verdict is True


def debugged(*containers, before=()):
    """The ephemeral containers of a pod with a claim of a user, in strict mode; or why they are denied."""

    def of(ephemeral):
        return raw(
            asking(),
            spec={
                "ephemeralContainers": list(ephemeral),
                "nodeName": "n1",
                "resourceClaims": [{"name": "gpu", "resourceClaimName": "x"}],
            },
        )

    review = Review(
        "u",
        "default",
        of([*before, *containers]),
        "v1",
        "AdmissionReview",
        "ephemeralcontainers",
        of(before),
    )
    verdict = admitter(strict=True).admit(review)
    return (
        verdict.message
        if isinstance(verdict, Denied)
        else verdict.pod["spec"]["ephemeralContainers"]
    )


def test_an_ephemeral_container_sees_no_devices_in_strict_mode():
    first, second = ({"name": name, "image": "nvidia/cuda"} for name in "ab")
    assert debugged(first) == [first | {"env": [HIDDEN]}]
    assert debugged(second, before=[first]) == [
        first,
        second | {"env": [HIDDEN]},
    ]  # those before never change
    assert debugged(before=[first]) == [first]
    sees_all = {**second, "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}
    assert debugged(sees_all).startswith(
        "container b: env NVIDIA_VISIBLE_DEVICES=all is not permitted in strict mode"
    )
    assert debugged(before=[sees_all]) == [sees_all]
    channels = {**second, "env": [{"name": "NVIDIA_IMEX_CHANNELS", "value": "0"}]}
    assert "NVIDIA_IMEX_CHANNELS=0 is not permitted" in debugged(channels)
    assert ephemeral(asking(), strict=True)["spec"]["ephemeralContainers"] == [
        {"name": "debug", "image": "x", "env": [HIDDEN]}
    ]


@cases(
    "thing, message",
    (
        raw(asking(ONE, envFrom=[{"secretRef": {"name": "s"}}])),
        "container c: envFrom is not permitted in strict mode",
    ),
    (
        raw(
            asking(ONE), asking(name="d", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
        ),
        "container d: env NVIDIA_VISIBLE_DEVICES=all is not permitted in strict mode",
    ),
    (
        raw(asking(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
        "container c: env NVIDIA_VISIBLE_DEVICES=all is not permitted in strict mode",
    ),
)
def test_pods_that_only_strict_mode_denies(thing, message):
    assert isinstance(admit(thing), Admitted)
    assert message in admit(thing, strict=True).message


@cases(
    "thing, message",
    (
        raw(asking(ONE, envFrom=[{"secretRef": {"name": "s"}}]), scheduler="volcano"),
        "container c: envFrom is not",
    ),
    (
        raw(asking(ONE, env=[{"name": "LD_PRELOAD", "value": "x"}]), scheduler="volcano"),
        "container c: env LD_PRELOAD=x is not",
    ),
    (
        raw(
            asking(ONE, env=[{"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "9g"}]),
            scheduler="volcano",
        ),
        "container c sets CUDA_DEVICE_MEMORY_LIMIT_0, which is reserved",
    ),
    (
        raw(
            asking(),
            inits=[asking(name="i", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])],
            scheduler="volcano",
        ),
        "container i: env NVIDIA_VISIBLE_DEVICES=all is not",
    ),
    (raw(asking(), asking(NAMES), scheduler="volcano"), "container c names 20000 resources"),
    (
        raw(*[asking()] * 100_000, scheduler="volcano"),
        "pod has 100000 containers, expected at most 128",
    ),
)
def test_strict_mode_denies_pods_of_another_scheduler_too(thing, message):
    assert admit(thing).pod is thing
    assert admit(thing, strict=True).message.startswith(message)


def test_strict_mode_changes_nothing_else_in_pods_of_another_scheduler():
    """Requests and the scheduler are left to the other one's admission."""
    thing = raw(
        asking(ONE),
        asking({"nvidia.com/gpumem": 10}, name="d", env=[{"name": "A", "value": "1"}]),
        inits=[asking(name="i", **PRIVILEGED)],
        scheduler="volcano",
        spec={"nodeName": "n1"},
    )
    after = admit(thing, strict=True)
    hidden = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    expected = copy.deepcopy(thing)
    expected["spec"]["containers"][1]["env"].append(hidden)
    expected["spec"]["initContainers"][0]["env"] = [hidden]
    assert (after.pod, after.message) == (expected, "pod already has different scheduler assigned")
    alone = raw(asking(ONE), scheduler="volcano")
    assert admit(alone, strict=True).pod is alone


def test_a_container_beside_one_with_devices_sees_none_in_strict_mode():
    _, beside = admit(raw(asking(ONE), asking(name="d")), strict=True).pod["spec"]["containers"]
    assert beside["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


# bounds


@cases(
    "thing, message",
    (
        "containers",
        raw(*[asking()] * 100_000, asking(ONE)),
        f"pod has 100001 containers, expected at most {MAX_CONTAINERS}",
    ),
    (
        "init containers",
        raw(asking(ONE), inits=[asking()] * MAX_CONTAINERS),
        f"pod has {MAX_CONTAINERS + 1} containers",
    ),
    (
        "resources",
        raw(asking(), asking({**NAMES, **ONE})),
        f"container c names 20001 resources, expected at most {MAX_RESOURCES}",
    ),
    (
        "resources of another container",
        raw(asking(NAMES), asking(ONE)),
        "container c names 20000 resources",
    ),
    (
        "requests",
        raw(asking(ONE, resources={"requests": {**NAMES, **ONE}})),
        "container c names 20001 resources",
    ),
)
def test_a_pod_beyond_a_bound_is_refused_if_it_requests_devices(thing, message):
    answer = admit(thing)
    assert isinstance(answer, Denied)
    assert answer.code == 403
    assert answer.message.startswith(message)


@cases(
    "thing",
    ("containers", raw(*[asking()] * 100_000)),
    ("resources", raw(asking(NAMES), *[asking({"cpu": 1})] * 1000)),
)
def test_a_pod_beyond_a_bound_without_devices_is_admitted(thing):
    answer = admit(thing)
    assert isinstance(answer, Admitted)
    assert answer.pod is thing


@pytest.mark.parametrize(
    "config, first",
    [({"overwrite_env": True}, asking()), ({"gpu_core_policy": "force"}, asking(ONE))],
    ids=str,
)
def test_no_pod_exceeds_a_bound_where_all_containers_are_changed(config, first):
    assert isinstance(admit(raw(first, *[asking()] * MAX_CONTAINERS), **config), Denied)


LOOKS_LIKE_A_WISH = {
    "an annotation named like a resource": {"nvidia.com/gpumem": "4Gi"},
    "an unknown annotation": {"hami.io/gpu-schedular-policy": "binpack"},
    "a known annotation": {"hami.io/gpu-scheduler-policy": "Binpak"},
}


@pytest.mark.parametrize("annotations", LOOKS_LIKE_A_WISH.values(), ids=LOOKS_LIKE_A_WISH)
@pytest.mark.parametrize("config", [{}, {"gpu_core_policy": "force"}], ids=str)
def test_a_pod_that_requests_no_devices_is_never_changed(annotations, config):
    made = raw(asking(), asking({"nvidia.com/gpumemory": 4}), meta={"annotations": annotations})
    answer = admit(made, **config)
    assert answer.pod is made
    assert "container c: nobody manages nvidia.com/gpumemory" in answer.warnings[-1]


@pytest.mark.parametrize("config", [{}, {"gpu_core_policy": "force"}], ids=str)
def test_who_requests_no_devices_is_warned_of_what_looks_like_a_wish(config):
    made = raw(asking(), meta={"annotations": {"nvidia.com/gpumem": "4Gi"}})
    assert admit(made, **config).warnings == (
        "annotation nvidia.com/gpumem is no request of devices: write nvidia.com/gpumem under resources.limits of a "
        "container",
    )


def test_a_pod_at_the_bounds_is_admitted():
    names = {f"example.com/{n}": 1 for n in range(MAX_RESOURCES - 1)}
    assert isinstance(admit(raw(*[asking({**names, **ONE})] * MAX_CONTAINERS)), Admitted)


def limited(percent, *containers, **fields):
    return raw(*containers, meta={"annotations": {CORES_LIMIT: percent}}, **fields)


THIRD, HALF = gpu_limits(gpu=1, gpumem=1, gpucores=30), gpu_limits(gpu=1, gpumem=1, gpucores=50)


@cases(
    "thing, namespace, limit",
    ("that of the namespace", raw(THIRD), "team-a", "60"),
    ("none for another", raw(THIRD), "team-b", None),
    ("no devices", raw(asking()), "team-a", None),
    ("no device", raw(gpu_limits(gpu=0)), "team-a", None),
    ("no cores", raw(gpu_limits(gpu=1, gpumem=1)), "team-a", "60"),
    ("raised to its cores", raw(gpu_limits(gpu=1, gpumem=1, gpucores=70)), "team-a", "70"),
    ("whole devices", raw(gpu_limits(gpu=1)), "team-a", "100"),
    (
        "raised to those of any container",
        raw(THIRD, inits=[gpu_limits(gpu=1, gpumem=1, gpucores=80)]),
        "team-a",
        "80",
    ),
    ("namespace of the pod", raw(THIRD, meta={"namespace": "team-a"}), "", "60"),
    ("its own", limited("30", THIRD), "team-a", "30"),
    ("its own, for several", limited("100", THIRD, HALF), "team-b", "100"),
    ("ignored without devices", limited("0", asking()), "team-a", "0"),
    ("ignored with no device", limited("much", gpu_limits(gpu=0)), "team-a", "much"),
)
def test_the_limit_of_cores(thing, namespace, limit):
    answer = admit(thing, namespace, gpucores_limits={"team-a": 60})
    assert isinstance(answer, Admitted)
    assert answer.pod["metadata"].get("annotations", {}).get(CORES_LIMIT) == limit
    assert admit(answer.pod, namespace, gpucores_limits={"team-a": 60}).pod == answer.pod


@cases(
    "percent, containers, why",
    ("0", [THIRD], "expected a whole number from 1 to 100, the percentage of a GPU"),
    ("101", [THIRD], "expected a whole number from 1 to 100"),
    ("+40", [THIRD], "expected a whole number"),
    ("040", [THIRD], "expected a whole number"),
    ("40%", [THIRD], "expected a whole number"),
    (
        "29",
        [THIRD],
        "expected 30 or more, since container c gets 30 percent of each GPU (nvidia.com/gpucores)",
    ),
    ("40", [THIRD, HALF], "expected 50 or more, since container c gets 50 percent"),
    ("99", [gpu_limits(gpu=1)], "expected 100 or more, since container c gets 100 percent"),
)
def test_a_limit_of_cores_that_cannot_be_kept_is_refused(percent, containers, why):
    answer = admit(limited(percent, *containers))
    assert isinstance(answer, Denied)
    assert f"annotation {CORES_LIMIT}={percent}: {why}" in answer.message


def calls(function, *args):
    """Returns the number of calls that *function* makes, those of functions in C included."""
    count = 0

    def profile(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        function(*args)
    finally:
        sys.setprofile(None)
    return count


def variables(size):
    """A container with *size* variables, half of which the webhook replaces by one."""
    names = ("CUDA_TASK_PRIORITY" if n % 2 else f"V{n}" for n in range(size))
    return raw(
        asking(
            ONE | {"nvidia.com/priority": 1}, env=[{"name": name, "value": "1"} for name in names]
        )
    )


@cases(
    "make",
    ("variables", variables),
    ("containers", lambda size: raw(*[asking()] * size)),
    ("containers with devices", lambda size: raw(*[asking(ONE)] * size)),
    ("resources", lambda size: raw(asking({f"example.com/{n}": 1 for n in range(size)} | ONE))),
    (
        "annotations",
        lambda size: raw(asking(ONE), meta={"annotations": {f"key-{n}": "" for n in range(size)}}),
    ),
)
def test_the_time_of_admission_is_linear(make):
    admission = admitter()

    def handle(body):
        review = parse_review(body)
        answer = admission.admit(review)
        if isinstance(answer, Admitted):
            render_allowed(review, answer.pod)

    small, large = (
        json.dumps({"request": {"object": make(size)}}).encode() for size in (500, 2000)
    )
    assert calls(handle, large) < 5 * calls(handle, small)


OVERWRITE, BY_CONTAINER = "hami.io/overwrite-env", "hami.io/overwrite-env-containers"
BLIND = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}]


@pytest.mark.parametrize(
    "annotations, config, hidden",
    [
        ({}, {}, False),
        ({}, {"overwrite_env": True}, True),
        ({OVERWRITE: "true"}, {}, True),
        ({OVERWRITE: "True "}, {}, True),
        ({OVERWRITE: "false"}, {"overwrite_env": True}, False),
        ({OVERWRITE: "false"}, {"strict": True}, True),
        ({OVERWRITE: ""}, {"overwrite_env": True}, True),
        ({OVERWRITE: "what"}, {"overwrite_env": True}, True),
        ({BY_CONTAINER: '{"c": "true"}'}, {}, True),
        ({BY_CONTAINER: '{"other": "true"}'}, {}, False),
        ({BY_CONTAINER: '{"c": "false"}', OVERWRITE: "true"}, {}, False),
        ({BY_CONTAINER: '{"c": "what"}', OVERWRITE: "true"}, {}, True),
        ({BY_CONTAINER: "c", OVERWRITE: "true"}, {}, True),
    ],
    ids=str,
)
def test_who_sees_devices_by_annotations(annotations, config, hidden):
    answer = admit(raw(asking(), meta={"annotations": annotations}), **config)
    (container,) = answer.pod["spec"]["containers"]
    assert container.get("env", []) == (BLIND if hidden else [])


def test_switches_of_a_pod_with_devices_must_be_readable():
    answer = admit(raw(asking(ONE), meta={"annotations": {BY_CONTAINER: "c"}}))
    assert isinstance(answer, Denied)
    assert answer.code == 422


@cases("groups, is_admitted", (["system:nodes"], True), (["system:authenticated"], False))
def test_a_mirror_pod_passes_if_a_kubelet_writes_it(groups, is_admitted):
    mirror = raw(
        asking(ONE),
        spec={"nodeName": "n1"},
        meta={"annotations": {"kubernetes.io/config.mirror": "x"}},
    )
    request = {"uid": "u", "object": mirror, "userInfo": {"groups": groups}}
    answer = admitter().admit(parse_review(json.dumps({"request": request}).encode()))
    assert isinstance(answer, Admitted) is is_admitted
    if is_admitted:
        assert answer.pod == mirror


def test_an_author_is_warned_of_a_wish_without_effect():
    meta = {"annotations": {"nvidia.com/gpumem": "4000"}}
    (warning,) = admit(raw(asking(ONE), meta=meta)).warnings
    assert warning.startswith("annotation nvidia.com/gpumem is no request of devices")


@cases(
    "limits, is_warned",
    ("a GPU", ONE, True),
    ("no GPU", None, False),
)
def test_an_author_is_warned_of_an_mps_server(limits, is_warned):
    env = [{"name": name, "value": "/mps"} for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG")]
    expected = (
        "container c sets CUDA_MPS_PIPE_DIRECTORY: its programs may use an MPS server, which HAMi neither starts nor "
        "limits",
    )
    assert admit(raw(asking(limits, env=env))).warnings == (expected if is_warned else ())


def test_an_author_is_warned_of_the_name_of_another_scheduler():
    answer = admit(raw(asking(ONE), scheduler="jupyterhub-user-scheduler"))
    assert answer.warnings == (
        "schedulerName jupyterhub-user-scheduler is not HAMi's: the pod gets no devices from HAMi; leave it out, "
        "or write hami-scheduler",
    )
    assert admit(raw(asking(), scheduler="jupyterhub-user-scheduler")).warnings == ()
