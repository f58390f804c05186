"""Admission with --dra=allocate: pods that get claims of their own, pods that have one already, and who stays with the
extender."""

import base64
import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings

from hami.codec.admission import Review, render_allowed
from hami.codec.device_config import DeviceConfig, NvidiaConfig, chart_config
from hami.codec.keys import ASSIGNED_NODE, CLAIM_AMOUNTS, CLAIM_RESOURCE, CORES_LIMIT
from hami.codec.pods import convert_pod
from hami.errors import ClusterError, HamiError
from hami.runtime.settings import ALLOCATE
from hami.scheduler.admit import Admitted, Admitter, Denied
from hami.scheduler.admit_claims import ClaimAdmitter
from hami.scheduler.app import Verbs, create_app
from hami.scheduler.settings import Settings
from hami.vendors.catalog import vendors
from testing.builders import quota
from testing.cases import cases
from testing.fuzz import mutated
from testing.replicas import Clock, Replica, WatchedCluster

CLAIMS, NAME = "hami-scheduler-claims", "hami-" + f"{1:032x}"
ALLOCATING = Settings(dra=ALLOCATE)
TOPOLOGY = {"hami.io/gpu-scheduler-policy": "topology-aware"}


def wire(
    gpu=1,
    gpumem=3000,
    *,
    gpucores=None,
    allocation_mode=None,
    annotations=None,
    spec=(),
    labels=None,
    **container,
):
    limits = {"nvidia.com/gpu": gpu, "nvidia.com/gpumem": gpumem} | (
        {"nvidia.com/gpucores": gpucores} if gpucores is not None else {}
    )
    return {
        "metadata": {
            "name": "p",
            "annotations": annotations or {},
            "labels": (labels or {})
            | ({"hami.io/allocation-mode": allocation_mode} if allocation_mode else {}),
        },
        "spec": {
            "schedulerName": "default-scheduler",
            **dict(spec),
            "containers": [{"name": "c", "resources": {"limits": limits}, **container}],
        },
    }


def review(pod):
    return Review("u", "team", pod, "v1", "AdmissionReview")


def warned(answer, containing):
    """The answer without its warning, which the pod's author sees."""
    assert answer.warnings[0].startswith(
        "hami.io/allocation-mode=dra-preferred: no claim is made for the pod's devices: "
    )
    assert containing in answer.warnings[0]
    return replace(answer, warnings=answer.warnings[1:])


def no_template(namespace, name):
    return None


def admitters(*quotas, settings=ALLOCATING, catalog=None, template=no_template, **config):
    """The admission of every pod, and of those with the label."""
    catalog = catalog or vendors(DeviceConfig(nvidia=NvidiaConfig(**config)))
    replica, numbers = Replica(WatchedCluster(), Clock(), vendors=catalog), itertools.count(1)
    for item in quotas:
        replica.cache.quotas.upsert(item)
    plain = Admitter(replica.cache.admissions, settings)
    sizes = replica.cache.admissions.claimable_sizes
    return plain, ClaimAdmitter(
        plain, catalog, sizes, template, lambda: f"hami-{next(numbers):032x}"
    )


def admit(pod, allocation_mode="dra", **options):
    return admitters(**options)[1].admit(review(pod), allocation_mode)


def by_the_extender(pod, **options):
    return admitters(**options)[0].admit(review(pod))


def claimed_by(pod, **options):
    answer = admit(pod, **options)
    assert isinstance(answer, Admitted), answer
    return answer.pod


@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
@pytest.mark.parametrize("scheduler", ["default-scheduler", "hami-scheduler", CLAIMS])
def test_the_profile_for_claims_places_the_pod(allocation_mode, scheduler):
    claimed = claimed_by(wire(spec={"schedulerName": scheduler}), allocation_mode=allocation_mode)
    assert claimed["spec"]["schedulerName"] == CLAIMS
    assert convert_pod(claimed).claim == NAME
    assert claimed["metadata"]["labels"]["hami.io/allocation-mode"] == allocation_mode
    assert claimed["spec"]["containers"][0]["resources"] == {
        "limits": {CLAIM_RESOURCE: "1"},
        "requests": {CLAIM_RESOURCE: "1"},
        "claims": [{"name": "hami", "request": "c"}],
    }
    assert json.loads(claimed["metadata"]["annotations"][CLAIM_AMOUNTS]) == {
        "c": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}
    }


def test_each_pod_has_a_claim_of_its_own():
    claims = admitters()[1]
    assert [convert_pod(claims.admit(review(wire()), "dra").pod).claim[-1] for _ in range(3)] == [
        "1",
        "2",
        "3",
    ]


def test_the_scheduler_says_what_templates_cannot():
    assert convert_pod(claimed_by(wire(annotations=TOPOLOGY))).claim == NAME


COUNTED = replace(quota(namespace="team"), requests=frozenset({"nvidia.com/gpu"}))


def test_a_quota_that_kubernetes_counts_is_not_evaded():
    plain, claims = admitters(COUNTED)
    reason = "ResourceQuota quota limits requests.nvidia.com/gpu, and Kubernetes counts no requests of pods with claims"
    assert reason in claims.admit(review(wire()), "dra").message
    assert convert_pod(claims.admit(review(wire()), "dra-preferred").pod).claim == ""
    assert reason in plain.admit(review(claimed_by(wire()))).message
    assert isinstance(
        admitters(replace(COUNTED, namespace="other"))[1].admit(review(wire()), "dra"), Admitted
    )


OTHER = {"resourceClaims": [{"name": "nic", "resourceClaimName": "nic"}]}


@cases(
    "pod, reason",
    (wire(spec=OTHER), "spec.resourceClaims"),
    (wire(gpu=33), "at most 32 GPUs"),
    (wire(spec={"schedulerName": "volcano"}), "its scheduler is not HAMi's"),
)
def test_what_no_claim_says(pod, reason):
    denied = admit(pod)
    assert isinstance(denied, Denied)
    assert denied.message.startswith("hami.io/allocation-mode=dra requires a claim")
    assert reason in denied.message
    assert warned(admit(pod, "dra-preferred"), reason) == by_the_extender(pod)


def test_other_vendors_in_the_pod():
    pod = wire()
    pod["spec"]["containers"].append({"name": "d", "resources": {"limits": {"amd.com/gpu": "1"}}})
    assert "container d: amd.com/gpu=1" in admit(pod, catalog=vendors(chart_config())).message


@cases(
    "of_namespace, of_pod, outcome",
    ("dra", "dra-preferred", "extender"),
    ("dra-preferred", "dra", "denied"),
    ("dra", "device-plugin", "extender"),
    ("dra", None, "denied"),
    ("dra-preferred", None, "extender"),
)
def test_the_label_of_a_pod_takes_precedence(of_namespace, of_pod, outcome):
    answer = admit(wire(spec=OTHER, allocation_mode=of_pod), of_namespace)
    assert isinstance(answer, Denied) == (outcome == "denied")


@pytest.mark.parametrize("label", ["device-plugin", "DRA"])
def test_other_labels(label):
    answer = admit(wire(allocation_mode=label))
    assert (
        answer == by_the_extender(wire(allocation_mode=label))
        if label == "device-plugin"
        else "expected dra" in answer.message
    )


LIFTED = [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"}]


@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
@cases(
    "pod, config",
    ({}, {}),
    (None, {}),
    ({"spec": {"containers": "x"}}, {}),
    (wire(gpu=0), {}),
    (wire(annotations={ASSIGNED_NODE: "n1"}), {}),
    (wire(gpumem="16Gi"), {}),
    (wire(spec={"nodeName": "n1"}), {}),
    (wire(securityContext={"privileged": True}), {}),
    (wire(env=LIFTED), {}),
    (wire(env=[{"name": "LD_PRELOAD", "value": "x"}]), {"strict": True}),
)
def test_what_holds_for_every_pod_holds_here(pod, config, allocation_mode):
    assert admit(pod, allocation_mode, **config) == by_the_extender(pod, **config)


def test_what_admission_adds_stays():
    pod = wire()
    pod["spec"]["containers"].append({"name": "log"})
    containers = claimed_by(pod, strict=True, runtime_class_name="nvidia")["spec"]
    assert containers["runtimeClassName"] == "nvidia"
    assert containers["containers"][1]["env"] == [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"}
    ]


@pytest.mark.parametrize("memory, is_admitted", [(3000, True), (2999, False)])
def test_quotas_hold(memory, is_admitted):
    plain, claims = admitters(quota("budget", "team", gpumem=memory))
    assert isinstance(claims.admit(review(wire()), "dra"), Admitted) is is_admitted
    claimed = claimed_by(wire())
    assert isinstance(plain.admit(review(claimed)), Admitted) is is_admitted


@cases("decide", ("own", admit), ("none", by_the_extender))
@cases(
    "annotations, outcome",
    ("of the namespace", {}, "60"),
    ("of the pod", {CORES_LIMIT: "80"}, "80"),
    ("less than is booked", {CORES_LIMIT: "20"}, "expected 30 or more"),
    (
        "unreadable",
        {CORES_LIMIT: "much"},
        f"annotation {CORES_LIMIT}=much: expected a whole number",
    ),
)
def test_the_most_cores_are_those_of_any_pod(decide, annotations, outcome):
    answer = decide(wire(gpucores=30, annotations=annotations), gpucores_limits={"team": 60})
    if isinstance(answer, Denied):
        assert outcome in answer.message
    else:
        assert answer.pod["metadata"]["annotations"][CORES_LIMIT] == outcome


def test_both_profiles_are_this_scheduler():
    assert [
        ALLOCATING.is_own_scheduler(name)
        for name in ("hami-scheduler", CLAIMS, "default-scheduler", "")
    ] == [True, True, False, False]
    with pytest.raises(HamiError, match="--dra=allocate without --scheduler-name"):
        Settings(dra=ALLOCATE, scheduler_name="")


# Pods that name templates which users have written

SLICE = {
    "spec": {
        "spec": {
            "devices": {
                "requests": [
                    {
                        "name": "main",
                        "exactly": {
                            "deviceClassName": "gpu.hami.io",
                            "capacity": {"requests": {"memory": "3000Mi", "cores": "30"}},
                        },
                    }
                ]
            }
        }
    }
}


def of_template(name="slice", **fields):
    pod = wire(**fields)
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": name}]
    pod["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    return pod


def slices(namespace, name):
    return SLICE if (namespace, name) == ("team", "slice") else None


@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
@pytest.mark.parametrize(
    "config", [{}, {"strict": True, "overwrite_env": True, "runtime_class_name": "nvidia"}]
)
def test_a_template_is_said_as_amounts(allocation_mode, config):
    claimed = claimed_by(of_template(), allocation_mode=allocation_mode, template=slices, **config)
    same = claimed_by(
        wire(gpucores=30, annotations={"nvidia.com/vgpu-mode": "hami-core,mps"}),
        allocation_mode=allocation_mode,
        **config,
    )
    assert claimed == same
    assert by_the_extender(claimed, template=slices, **config) == Admitted(claimed)


def test_init_containers_that_share_a_request_keep_it():
    pod = of_template(
        spec={"initContainers": [{"name": "i", "resources": {"claims": [{"name": "gpu"}]}}]}
    )
    claimed = claimed_by(pod, template=slices)
    assert [
        one["resources"]["claims"]
        for one in (*claimed["spec"]["initContainers"], *claimed["spec"]["containers"])
    ] == [[{"name": "hami", "request": "c"}]] * 2
    assert admit(claimed).pod == claimed == by_the_extender(claimed).pod


@cases(
    "pod, reason",
    ("no template", of_template("gone"), "ResourceClaimTemplate gone does not exist"),
    (
        "another scheduler",
        of_template(spec={"schedulerName": "volcano"}),
        "its scheduler is not HAMi's",
    ),
    ("privileged", of_template(securityContext={"privileged": True}), "container c is privileged"),
    ("a limit", of_template(env=LIFTED), "CUDA_DEVICE_MEMORY_LIMIT"),
    ("a node", of_template(spec={"nodeName": "n1"}), "pod has node assigned"),
    (
        "mode",
        of_template(annotations={"nvidia.com/vgpu-mode": "mig"}),
        "annotation nvidia.com/vgpu-mode",
    ),
)
def test_templates_of_which_no_claim_is_made(pod, reason):
    denied = admit(pod, template=slices)
    assert isinstance(denied, Denied)
    assert denied.message.startswith("hami.io/allocation-mode=dra requires a claim")
    assert reason in denied.message
    assert warned(admit(pod, "dra-preferred", template=slices), reason) == by_the_extender(pod)


@pytest.mark.parametrize("memory, is_admitted", [(3000, True), (2999, False)])
def test_quotas_hold_for_templates(memory, is_admitted):
    """What containers share counts once."""
    pod = of_template()
    pod["spec"]["containers"].append({"name": "d", "resources": {"claims": [{"name": "gpu"}]}})
    claimed = claimed_by(pod, template=slices)
    plain, claims = admitters(quota("budget", "team", gpumem=memory), template=slices)
    answers = claims.admit(review(pod), "dra"), plain.admit(review(claimed))
    assert [isinstance(answer, Admitted) for answer in answers] == [is_admitted] * 2
    assert is_admitted or all("exceeding resource quota" in answer.message for answer in answers)


@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
def test_while_templates_cannot_be_read_no_pod_is_admitted(allocation_mode):
    def unreachable(namespace, name):
        raise ClusterError("the API server is away")

    denied = admit(of_template(), allocation_mode, template=unreachable)
    assert denied == Denied("the claims of the pod are not known: the API server is away", 503)
    assert isinstance(admit(wire(), allocation_mode, template=unreachable), Admitted)


# Pods that have a claim already

WITH_INIT = wire(
    spec={"initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": 2}}}]}
)


@pytest.mark.parametrize(
    "config", [{}, {"strict": True, "overwrite_env": True, "runtime_class_name": "nvidia"}]
)
@pytest.mark.parametrize("pod", [wire(), WITH_INIT])
def test_admission_again_changes_nothing(pod, config):
    claimed = claimed_by(pod, **config)
    for answer in (
        by_the_extender(claimed, **config),
        admit(claimed, **config),
        admit(claimed, "dra-preferred", **config),
    ):
        assert isinstance(answer, Admitted)
        assert answer.pod == claimed
        rendered = json.loads(render_allowed(review(claimed), answer.pod))
        assert "patch" not in rendered["response"]


def changed(change):
    """A pod with a claim that its author has written: *change* changes its specification."""
    claimed = json.loads(json.dumps(claimed_by(wire())))
    change(claimed["spec"], claimed["spec"]["containers"][0])
    return claimed


@cases(
    "change, config, problem",
    (
        "privileged",
        lambda spec, container: container.update(securityContext={"privileged": True}),
        {},
        "is privileged",
    ),
    ("a node", lambda spec, container: spec.update(nodeName="n1"), {}, "pod has node assigned"),
    (
        "a limit",
        lambda spec, container: container.update(env=LIFTED),
        {},
        "CUDA_DEVICE_MEMORY_LIMIT",
    ),
    (
        "strict mode",
        lambda spec, container: container.update(env=[{"name": "LD_PRELOAD", "value": "x"}]),
        {"strict": True},
        "LD_PRELOAD",
    ),
    (
        "another scheduler",
        lambda spec, container: spec.update(schedulerName="volcano"),
        {},
        "its scheduler is not HAMi's",
    ),
    (
        "another claim",
        (
            lambda spec, container: spec["resourceClaims"].append(
                {"name": "nic", "resourceClaimName": "nic"}
            )
        ),
        {},
        "spec.resourceClaims",
    ),
    (
        "no request",
        lambda spec, container: container["resources"].pop("claims"),
        {},
        "container c uses nothing",
    ),
    (
        "requests that are no list",
        lambda spec, container: container["resources"].update(claims=5),
        {},
        "container c uses nothing",
    ),
)
def test_a_pod_whose_author_wrote_the_claim_is_judged_like_any_other(change, config, problem):
    pod = changed(change)
    for answer in (by_the_extender(pod, **config), admit(pod, **config)):
        assert isinstance(answer, Denied)
        assert problem in answer.message


def test_amounts_without_a_gpu():
    resources = {"claims": [{"name": "hami", "request": "d"}]}
    pod = changed(
        lambda spec, container: spec["containers"].append({"name": "d", "resources": resources})
    )
    pod["metadata"]["annotations"][CLAIM_AMOUNTS] = json.dumps(
        {"c": {"nvidia.com/gpu": "1"}, "d": {"nvidia.com/gpu": "0"}}
    )
    assert by_the_extender(pod).message == "container d requests no GPU by its claim"


@settings(max_examples=200)
@given(body=mutated(claimed_by(WITH_INIT)))
def test_any_pod_with_a_claim_gets_an_answer(body):
    pod = json.loads(body)
    if isinstance(pod, dict):
        assert isinstance(by_the_extender(pod, strict=True), Admitted | Denied)


def test_a_pod_with_a_claim_leaves_no_other_scheduler():
    pod = changed(lambda spec, container: spec.update(schedulerName="hami-scheduler"))
    assert by_the_extender(pod).pod == claimed_by(wire())


def test_amounts_that_cannot_be_read_are_denied():
    pod = claimed_by(wire())
    pod = {**pod, "metadata": {**pod["metadata"], "annotations": {CLAIM_AMOUNTS: "{}"}}}
    answer = by_the_extender(pod)
    assert isinstance(answer, Denied)
    assert answer.message.startswith(CLAIM_AMOUNTS)


def test_strict_mode_refuses_ephemeral_containers_of_pods_with_claims():
    def ephemeral(pod, **config):
        return admitters(**config)[0].admit(
            Review("u", "team", pod, "v1", "AdmissionReview", subresource="ephemeralcontainers")
        )

    claimed = claimed_by(wire())
    broken = {**claimed, "metadata": {"name": "p"}}
    assert isinstance(ephemeral(claimed, strict=True), Denied)
    assert isinstance(ephemeral(broken, strict=True), Denied)
    assert isinstance(ephemeral(claimed), Admitted)


def post(client, path, pod):
    body = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "u", "namespace": "team", "object": pod},
    }
    return client.post(path, data=json.dumps(body), content_type="application/json")


def client(*, with_claims):
    plain, claims = admitters()
    verbs = Verbs(plain, None, None, None, None, None, claims if with_claims else None)
    return create_app(verbs, lambda _: True, lambda: None, lambda *_: None, threads=4).test_client()


def test_each_value_of_the_label_has_a_path():
    answers = {
        path: post(client(with_claims=True), path, wire(spec=OTHER)).json["response"]
        for path in ("/webhook", "/webhook/dra", "/webhook/dra-preferred")
    }
    assert not answers["/webhook/dra"]["allowed"]
    (warning,) = answers["/webhook/dra-preferred"].pop("warnings")
    assert answers["/webhook"] == answers["/webhook/dra-preferred"]
    assert answers["/webhook"]["allowed"]
    assert "spec.resourceClaims" in warning
    patch = json.loads(
        base64.b64decode(
            post(client(with_claims=True), "/webhook/dra", wire()).json["response"]["patch"]
        )
    )
    assert {operation["path"]: operation["op"] for operation in patch} == {
        f"/metadata/annotations/{CLAIM_AMOUNTS.replace('/', '~1')}": "add",
        "/metadata/labels/hami.io~1allocation-mode": "add",
        "/spec/resourceClaims": "add",
        "/spec/schedulerName": "replace",
        "/spec/containers/0/resources/limits/nvidia.com~1gpu": "remove",
        "/spec/containers/0/resources/limits/nvidia.com~1gpumem": "remove",
        "/spec/containers/0/resources/limits/hami.io~1claim": "add",
        "/spec/containers/0/resources/requests": "add",
        "/spec/containers/0/resources/claims": "add",
    }


@pytest.mark.parametrize("path", ["/webhook/dra", "/webhook/dra-preferred"])
def test_without_claims_the_paths_do_not_exist(path):
    assert post(client(with_claims=False), path, wire()).status_code == 404
