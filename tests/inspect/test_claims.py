"""explain, simulate and capacity for pods whose claims kube-scheduler allocates: they are shown, and not judged."""

import json

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.codec.slices import render_slices
from testing.builders import gpu
from testing.cases import cases
from testing.fake_api import FakeApi, claimed, refused
from testing.nodes import fake_node
from testing.nodes import gpu as card

CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
FAILED = {
    "metadata": {"name": "e"},
    "involvedObject": {"name": "web", "uid": "uid-web"},
    "reason": "FailedScheduling",
    "message": "0/2 nodes are available: 2 cannot allocate all claims.",
    "count": 3,
    "source": {"component": "default-scheduler"},
    "lastTimestamp": "2026-08-21T12:05:00Z",
}
NOT_JUDGED = "kube-scheduler allocates its claims, and they are not judged here"


def node(name):
    return {"metadata": {"name": name, "labels": {"hami.io/allocation-mode": "dra"}}, "spec": {}}


def pod(name="web", limits=(), claims=({"resourceClaimTemplateName": "slice"},), **status):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "creationTimestamp": "2026-08-21T12:00:00Z",
        },
        "spec": {
            "containers": [{"name": "main", "resources": {"limits": dict(limits)}}],
            "resourceClaims": [
                {"name": f"claim-{place}", **claim} for place, claim in enumerate(claims)
            ],
        },
        "status": {"phase": "Pending", **status},
    }


def deployment(replicas, **fields):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"replicas": replicas, "template": {"metadata": {}, "spec": pod(**fields)["spec"]}},
    }


def api(*pods, claims=(), classes=(), nodes=None, **fields):
    """Two nodes with a card for claims each."""
    slices = []
    for name in ("d1", "d2"):
        slices += render_slices(name, [gpu(f"GPU-{name}-0", memory_mib=40_000, **fields)])
    of = FakeApi(
        nodes or [node("d1"), node("d2")],
        list(pods),
        others={
            "resourceslices": slices,
            "resourceclaims": list(claims),
            "deviceclasses": list(classes),
        },
    )
    of.events = [FAILED]
    return of


def hami(*args, of):
    return CliRunner().invoke(main, args, obj=lambda client: of.request)


def explained(of, *args):
    result = hami("explain", "pod", "web", *args, of=of)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_pod_that_waits_is_shown_with_the_event_of_kube_scheduler():
    lines = explained(api(pod())).splitlines()
    assert lines[0].startswith("pod team/web has been waiting for ")
    assert lines[0].endswith("(scheduler default-scheduler)")
    assert lines[1:] == [
        "  ResourceClaimTemplate slice",
        "",
        f"Nothing is said about nodes: {NOT_JUDGED}.",
        "default-scheduler (FailedScheduling, 3 times, last at 2026-08-21T12:05:00Z): "
        "0/2 nodes are available: 2 cannot allocate all claims.",
    ]


def test_the_report():
    report = json.loads(explained(api(pod()), "-o", "json"))
    assert report["claims"] == ["ResourceClaimTemplate slice"]
    assert [event["count"] for event in report["events"]] == [3]
    assert report["managed"] == []


def test_a_claim_that_is_made_of_a_template_has_its_name():
    made = {"resourceClaimStatuses": [{"name": "claim-0", "resourceClaimName": "web-gpu-x"}]}
    text = explained(api(pod(**made)))
    assert "  ResourceClaim web-gpu-x\n" in text


def test_all_claims_of_a_pod_are_shown():
    claims = [{"resourceClaimName": "mine"}, {"resourceClaimTemplateName": "nic"}]
    text = explained(api(pod(claims=claims)))
    assert "  ResourceClaim mine\n  ResourceClaimTemplate nic\n" in text


def test_nodes_whose_devices_hamis_scheduler_allocates_are_told():
    managed = fake_node("n1", (card(),), annotations={"hami.io/allocation-mode": "dra"})
    text = explained(api(pod(), nodes=[managed, node("d1"), node("d2")]))
    assert (
        "HAMi's scheduler allocates the devices of 1 node, and kube-scheduler gives them to" in text
    )


def standing_for(resource, name="gpu.hami.io"):
    return {"metadata": {"name": name}, "spec": {"extendedResourceName": resource}}


@pytest.mark.parametrize(
    "resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu.hami.io"]
)
def test_a_resource_that_stands_for_a_claim(resource):
    waits = pod(limits={resource: "1", "cpu": "1"}, claims=())
    text = explained(api(waits, classes=[standing_for("example.com/gpu")]))
    assert f"  resource {resource} of DeviceClass gpu.hami.io\n" in text
    assert NOT_JUDGED in text


@pytest.mark.parametrize("may_list", [True, False])
def test_a_resource_that_stands_for_no_claim(may_list):
    of = api(pod(limits={"example.com/gpu": "1"}, claims=()))
    if not may_list:
        of.errors[CLASSES] = refused()
    result = hami("explain", "pod", "web", of=of)
    assert result.exit_code == 2
    assert "requests no devices that HAMi manages" in result.stderr
    assert ("resources that stand for claims are not known" in result.stderr) is not may_list


# Manifests


def run(command, tmp_path, *documents, of, args=()):
    path = tmp_path / "f.yaml"
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return hami(command, "-f", str(path), "-n", "team", *args, of=of)


BY_RESOURCE = deployment(2, limits={"example.com/gpu": "1"}, claims=())


@cases("workload", ("claims", deployment(2)), ("a resource", BY_RESOURCE))
def test_simulate_and_capacity_do_not_judge_claims(tmp_path, workload):
    of = api(classes=[standing_for("example.com/gpu")])
    simulated = run("simulate", tmp_path, workload, of=of)
    assert simulated.exit_code == 1
    assert simulated.stdout.startswith(f"deployment/web: {NOT_JUDGED}\n")
    counted = run("capacity", tmp_path, workload, of=of)
    assert counted.exit_code == 2
    assert f"deployment/web: {NOT_JUDGED}" in counted.stderr


def test_the_pods_beside_them_are_placed(tmp_path):
    of = api(nodes=[fake_node("n1", (card(),)), node("d1")])
    beside = pod("beside", limits={"nvidia.com/gpu": "1"}, claims=())
    text = run("simulate", tmp_path, deployment(1), beside, of=of).stdout
    assert f"deployment/web: {NOT_JUDGED}\n" in text
    assert "pod/beside: 1 of 1 fit" in text


def test_a_pod_of_the_device_plugin_may_name_claims(tmp_path):
    of = api(nodes=[fake_node("n1", (card(),))])
    result = run("simulate", tmp_path, pod(limits={"nvidia.com/gpu": "1"}), of=of)
    assert result.exit_code == 0, result.output
    assert "n1" in result.stdout, result.output


def test_a_pod_of_a_drained_node_that_holds_a_claim(tmp_path):
    holder = pod("a")
    holder["metadata"] |= {"namespace": "default", "uid": "uid-default-a"}
    holder["spec"]["nodeName"] = "d1"
    of = api(holder, claims=[claimed("a", "d1", "30000Mi")])
    result = run("simulate", tmp_path, deployment(0), of=of, args=["--drain", "d1"])
    assert f"pod/a: {NOT_JUDGED}\n" in result.stdout, result.output


def test_classes_are_listed_once_for_all_pods(tmp_path):
    of = api(classes=[standing_for("example.com/gpu")])
    asked = []
    request = of.request
    of.request = lambda method, path, **fields: (
        asked.append(path) or request(method, path, **fields)
    )
    run("simulate", tmp_path, *[BY_RESOURCE] * 3, of=of)
    assert asked.count(CLASSES) == 1


def test_a_resource_of_the_device_plugin_reads_no_classes(tmp_path):
    of = api(nodes=[fake_node("n1", (card(),))])
    of.errors[CLASSES] = refused()
    plain = pod(limits={"nvidia.com/gpu": "1"}, claims=())
    result = run("simulate", tmp_path, plain, of=of)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert "you may not list" in run("simulate", tmp_path, BY_RESOURCE, of=of).stderr
