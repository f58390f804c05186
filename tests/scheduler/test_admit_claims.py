"""Admission of pods that are to get a claim: who gets one, who is denied, who stays with the extender."""

import base64
import json
from dataclasses import replace

import pytest

from hami.codec.admission import Review
from hami.codec.device_config import DeviceConfig, NvidiaConfig
from hami.codec.keys import ASSIGNED_NODE, CLAIM_REQUEST
from hami.codec.objects import parse_quota
from hami.dra.translate import has_claim
from hami.scheduler.admit import Admitted, Admitter, Denied
from hami.scheduler.admit_claims import ClaimAdmitter, ClaimsOfTemplates
from hami.scheduler.app import Verbs, create_app
from hami.scheduler.settings import Settings
from hami.vendors.catalog import vendors
from tests.world import Clock, Replica, WatchedCluster

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


def quota(hard, scopes=()):
    return parse_quota(
        json.dumps(
            {
                "metadata": {"namespace": "team", "name": "budget", "uid": "q"},
                "spec": {"hard": hard, "scopes": list(scopes)},
            }
        ).encode()
    )


def admitters(*quotas, settings=Settings(), sizes=(), **config):
    replica = Replica(
        WatchedCluster(), Clock(), vendors=vendors(DeviceConfig(nvidia=NvidiaConfig(**config)))
    )
    for item in quotas:
        replica.cache.quotas.upsert(item)
    plain = Admitter(replica.cache, settings)
    return plain, ClaimAdmitter(
        plain, ClaimsOfTemplates(replica.cache, settings, lambda: frozenset(sizes))
    )


def review(pod):
    return Review("u", "team", pod, "v1", "AdmissionReview")


def admit(pod, allocation_mode="dra", *quotas, **options):
    return admitters(*quotas, **options)[1].admit(review(pod), allocation_mode)


def by_the_extender(pod, *quotas, **options):
    return admitters(*quotas, **options)[0].admit(review(pod))


def warned(answer, containing):
    """The answer without its warning, which the pod's author sees."""
    assert answer.warning.startswith(
        "hami.io/allocation-mode=dra-preferred: no claim is made for the pod's devices: "
    )
    assert containing in answer.warning
    return replace(answer, warning="")


@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
@pytest.mark.parametrize("scheduler", ["default-scheduler", "volcano", "hami-scheduler"])
def test_the_scheduler_stays_who_it_is(allocation_mode, scheduler):
    answer = admit(wire(spec={"schedulerName": scheduler}), allocation_mode)
    assert isinstance(answer, Admitted)
    assert has_claim(answer.pod)
    assert answer.pod["spec"]["schedulerName"] == scheduler
    assert answer.pod["spec"]["containers"][0]["resources"] == {
        "claims": [{"name": "hami", "request": "c"}]
    }


def test_what_no_claim_says_is_denied_where_one_is_required():
    answer = admit(wire(annotations=TOPOLOGY))
    assert isinstance(answer, Denied)
    assert answer.code == 403
    assert answer.message.startswith("hami.io/allocation-mode=dra requires a claim")
    assert "annotation hami.io/gpu-scheduler-policy=topology-aware" in answer.message


def test_what_no_claim_says_stays_with_the_extender_where_one_is_preferred():
    pod = wire(annotations=TOPOLOGY)
    answer = admit(pod, "dra-preferred")
    assert warned(answer, "topology-aware") == by_the_extender(pod)
    assert answer.pod["spec"]["schedulerName"] == "hami-scheduler"


@pytest.mark.parametrize(
    ("of_namespace", "of_pod", "outcome"),
    [
        ("dra", "dra-preferred", "extender"),
        ("dra-preferred", "dra", "denied"),
        ("dra", "device-plugin", "extender"),
        ("dra", None, "denied"),
        ("dra-preferred", None, "extender"),
    ],
)
def test_the_label_of_a_pod_takes_precedence(of_namespace, of_pod, outcome):
    answer = admit(wire(annotations=TOPOLOGY, allocation_mode=of_pod), of_namespace)
    assert isinstance(answer, Denied) == (outcome == "denied")


def test_a_pod_may_leave_the_claims_of_its_namespace():
    assert admit(wire(allocation_mode="device-plugin")) == by_the_extender(
        wire(allocation_mode="device-plugin")
    )


def test_an_unknown_label_is_denied():
    answer = admit(wire(allocation_mode="DRA"))
    assert isinstance(answer, Denied)
    assert (
        answer.message
        == "label hami.io/allocation-mode=DRA: expected dra, dra-preferred, device-plugin"
    )


@pytest.mark.parametrize(
    "pod",
    [
        {},
        None,
        {"spec": {"containers": "x"}},
        {"metadata": {"labels": None}, "spec": {"containers": [{"name": "c"}]}},
        wire(gpu=0),
        wire(annotations={ASSIGNED_NODE: "n1"}),
        wire(spec={"initContainers": [{"name": f"i{number}"} for number in range(200)]}),
    ],
)
@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
def test_other_pods_are_judged_as_everywhere(pod, allocation_mode):
    answer = admit(pod, allocation_mode)
    plain = by_the_extender(pod)
    assert answer == plain or (isinstance(answer, Denied) and isinstance(plain, Denied))


@pytest.mark.parametrize(
    "pod",
    [
        wire(gpumem="16Gi"),
        wire(securityContext={"privileged": True}),
        wire(spec={"nodeName": "n1"}),
        wire(env=[{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "0"}]),
        wire(gpu="0.5"),
    ],
)
@pytest.mark.parametrize("allocation_mode", ["dra", "dra-preferred"])
def test_what_is_denied_everywhere_is_denied_here(pod, allocation_mode):
    assert isinstance(by_the_extender(pod), Denied)
    assert isinstance(admit(pod, allocation_mode), Denied)


def test_percent_depends_on_the_cards_that_claims_can_get():
    pod = wire()
    pod["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpumem-percentage": 50}
    assert "there is no GPU yet" in admit(pod).message
    assert has_claim(admit(pod, sizes=[81920]).pod)


@pytest.mark.parametrize(
    ("hard", "scopes", "limited"),
    [
        ({"limits.nvidia.com/gpumem": "10000"}, (), "nvidia.com/gpumem"),
        ({"limits.nvidia.com/gpucores": "100"}, (), "nvidia.com/gpucores"),
        ({"requests.nvidia.com/gpu": "4"}, (), "nvidia.com/gpu"),
        ({"limits.nvidia.com/gpumem": "10000"}, ("Terminating",), None),
        (
            {
                "requests.memory": "4Gi",
                "pods": "3",
                "limits.cpu": "1",
                "requests.nic.example.com/port": "1",
            },
            (),
            None,
        ),
    ],
)
def test_claims_do_not_evade_a_quota(hard, scopes, limited):
    answer = admit(wire(), "dra", quota(hard, scopes))
    assert isinstance(answer, Denied) == (limited is not None)
    if limited:
        assert f"ResourceQuota budget limits {limited}" in answer.message
        assert warned(
            admit(wire(), "dra-preferred", quota(hard, scopes)), limited
        ) == by_the_extender(wire(), quota(hard, scopes))


def ephemeral(pod, **config):
    plain, _ = admitters(**config)
    return plain.admit(
        Review("u", "team", pod, "v1", "AdmissionReview", subresource="ephemeralcontainers")
    )


def test_strict_mode_refuses_ephemeral_containers_of_pods_with_claims():
    claiming = admit(wire(), strict=True).pod
    assert isinstance(ephemeral(claiming, strict=True), Denied)
    assert isinstance(ephemeral(claiming), Admitted)
    other = {
        **claiming,
        "spec": {**claiming["spec"], "resourceClaims": [{"name": "nic", "resourceClaimName": "n"}]},
    }
    assert isinstance(ephemeral(other, strict=True), Admitted)  # it sees no devices: test_admit.py


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
        path: post(client(with_claims=True), path, wire(annotations=TOPOLOGY)).json["response"]
        for path in ("/webhook", "/webhook/dra", "/webhook/dra-preferred")
    }
    assert not answers["/webhook/dra"]["allowed"]
    (warning,) = answers["/webhook/dra-preferred"].pop("warnings")
    assert answers["/webhook"] == answers["/webhook/dra-preferred"]
    assert answers["/webhook"]["allowed"]
    assert "topology-aware" in warning
    patch = json.loads(
        base64.b64decode(
            post(client(with_claims=True), "/webhook/dra", wire()).json["response"]["patch"]
        )
    )
    assert {operation["path"]: operation["op"] for operation in patch} == {
        f"/metadata/annotations/{CLAIM_REQUEST.replace('/', '~1')}": "add",
        "/metadata/labels/hami.io~1allocation-mode": "add",
        "/spec/resourceClaims": "add",
        "/spec/containers/0/resources/limits": "remove",
        "/spec/containers/0/resources/claims": "add",
    }


@pytest.mark.parametrize("path", ["/webhook/dra", "/webhook/dra-preferred"])
def test_without_claims_the_paths_do_not_exist(path):
    assert post(client(with_claims=False), path, wire()).status_code == 404
