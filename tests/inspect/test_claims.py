"""explain, simulate and capacity for pods whose claims users have written."""

import json

import pytest
from click.testing import CliRunner

from e2e.nodes import fake_node
from e2e.nodes import gpu as card
from hami.cli import main
from hami.codec.slices import render_slices
from hami.errors import ClusterError
from tests.builders import gpu
from tests.devices.cards import A100_PROFILES
from tests.inspect.clusters import FakeApi, claimed, refused

CLASS = {
    "metadata": {"name": "gpu.hami.io"},
    "spec": {
        "selectors": [
            {
                "cel": {
                    "expression": "device.driver == 'gpu.hami.io' && device.attributes['gpu.hami.io'].type == 'gpu'"
                }
            }
        ]
    },
}
MIG = {
    "metadata": {"name": "mig.hami.io"},
    "spec": {
        "selectors": [
            {
                "cel": {
                    "expression": "device.driver == 'gpu.hami.io' && device.attributes['gpu.hami.io'].type == 'mig'"
                }
            }
        ]
    },
}
CLAIMS = "/apis/resource.k8s.io/v1"
CLASS_PATH = f"{CLAIMS}/deviceclasses/gpu.hami.io"


class ClaimApi(FakeApi):
    """Also serves single objects of Dynamic Resource Allocation."""

    def request(self, method, path, **fields):
        parts = path.split("/")
        if path.startswith(CLAIMS) and len(parts) > 5 and path not in self.errors:
            for found in self.others.get(parts[-2], []):
                if found["metadata"]["name"] == parts[-1]:
                    return json.dumps(found).encode()
        return super().request(method, path, **fields)


def node(name, **spec):
    return {"metadata": {"name": name, "labels": {"hami.io/allocation-mode": "dra"}}, "spec": spec}


def template(
    name="slice",
    kind="ResourceClaimTemplate",
    namespace="team",
    request="main",
    selectors=(),
    **capacity,
):
    devices = {
        "requests": [
            {
                "name": request,
                "exactly": {
                    "deviceClassName": "gpu.hami.io",
                    "selectors": [{"cel": {"expression": text}} for text in selectors],
                    "capacity": {"requests": capacity},
                },
            }
        ]
    }
    spec = {"devices": devices}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": spec} if kind == "ResourceClaimTemplate" else spec,
    }


def pod(name="web", resource_claim=None, **resources):
    entry = (
        {"resourceClaimName": resource_claim}
        if resource_claim
        else {"resourceClaimTemplateName": "slice"}
    )
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
            "containers": [
                {
                    "name": "main",
                    "resources": {
                        "claims": [{"name": "gpu", "request": "main"}],
                        **({"limits": resources} if resources else {}),
                    },
                }
            ],
            "resourceClaims": [{"name": "gpu", **entry}],
        },
        "status": {"phase": "Pending"},
    }


def api(*templates, pods=(), claims=(), nodes=None, **fields):
    """Two nodes with a card of 40,000 MiB each; *claims* hold parts of them."""
    slices = [
        part
        for name in ("d1", "d2")
        for part in render_slices(name, [gpu(f"GPU-{name}-0", memory_mib=40_000, **fields)])
    ]
    return ClaimApi(
        nodes or [node("d1"), node("d2")],
        list(pods),
        others={
            "resourceslices": slices,
            "resourceclaims": list(claims),
            "resourceclaimtemplates": list(templates),
            "deviceclasses": [CLASS],
        },
    )


def hami(*args, of):
    return CliRunner().invoke(main, args, obj=lambda client: of.request)


def explained(of, *args):
    result = hami("explain", "pod", "web", *args, of=of)
    assert result.exit_code == 0, result.output
    return result.stdout


HELD = [claimed("a", "d1", "30000Mi"), claimed("b", "d2", "20000Mi")]


def test_a_pod_that_no_node_fits():
    text = explained(api(template(memory="21000Mi", cores="30"), pods=[pod()], claims=HELD))
    lines = text.splitlines()
    assert lines[0].startswith("pod team/web has been waiting for ")
    assert lines[0].endswith("(scheduler default-scheduler)")
    assert lines[1:] == [
        "  main asks for 1 × NVIDIA with 21000 MiB, 30 cores",
        "",
        "It fits none of 2 nodes with devices:",
        "  2 nodes  CardInsufficientMemory",
        "",
        "Nearest first:",
        "  d2  1/1 CardInsufficientMemory (container main)",
        "    card 0  20000/40000 MiB, 90/100 cores, 9/10 slots free; lacks 1,000 MiB (CardInsufficientMemory)",
        "  d1  1/1 CardInsufficientMemory (container main)",
        "    card 0  10000/40000 MiB, 90/100 cores, 9/10 slots free; lacks 11,000 MiB (CardInsufficientMemory)",
    ]


def test_the_report_is_that_of_other_pods():
    report = json.loads(
        explained(api(template(memory="21000Mi"), pods=[pod()], claims=HELD), "-o", "json")
    )
    assert [part["node"] for part in report["nodes"]] == ["d2", "d1"]
    assert report["fits"] == ""
    assert report["claimNotes"] == []
    assert report["requests"] == [
        {"container": "main", "requests": ["1 × NVIDIA with 21000 MiB, 0 cores"]}
    ]


def test_a_pod_that_fits_waits_for_kube_scheduler():
    text = explained(api(template(memory="1Gi"), pods=[pod()], claims=HELD))
    assert (
        "It fits: kube-scheduler can allocate its claims on d1 now.\nIt waits for kube-scheduler"
        in text
    )
    assert (
        "It tries the pod again when a claim ends, when a label of d1 changes, or after five minutes.\n"
        in text
    )


def test_a_cordoned_node_is_not_asked():
    of = api(
        template(memory="1Gi"),
        pods=[pod()],
        nodes=[node("d1", unschedulable=True), node("d2")],
        claims=HELD,
    )
    assert "allocate its claims on d2 now" in explained(of)
    of = api(
        template(memory="30Gi"),
        pods=[pod()],
        nodes=[node("d1", unschedulable=True), node("d2")],
        claims=HELD,
    )
    assert "  1 node  cordoned, not asked" in explained(of)


def test_what_a_claim_selects_is_told_and_judged():
    selector = 'device.attributes["gpu.hami.io"].productName.lowerAscii().contains("h100")'
    text = explained(api(template(memory="1Gi", selectors=[selector]), pods=[pod()]))
    assert f"  main asks for 1 × NVIDIA with 1024 MiB, 0 cores, selected by {selector}\n" in text
    assert "  2 nodes  CardTypeMismatch" in text
    assert "not evaluated" not in text


@pytest.mark.parametrize(
    "memory, said",
    [
        ("1Gi", "It may fit d1: what is looked at here has room there."),
        ("39Gi", "It fits none of 2 nodes with devices:"),
    ],
)
def test_a_selector_that_is_not_evaluated_is_told(memory, said):
    text = explained(
        api(
            template(memory=memory, selectors=["device.driver.size() > 3"]),
            pods=[pod()],
            claims=HELD,
        )
    )
    assert "tries the pod again" not in text
    assert said in text
    assert (
        "\nResourceClaimTemplate slice, request main: selector device.driver.size() > 3 is not evaluated here. Nodes "
        "are judged without it: one that does not fit would not fit with it either."
    ) in text


@pytest.mark.parametrize(
    "mode, memory, said",
    [
        ("mig", "10Gi", "It may fit d1: what is looked at here has room there."),
        ("mig", "50Gi", "  2 nodes  CardInsufficientMemory"),
        ("hami-core", "10Gi", "  2 nodes  CardTypeMismatch"),
    ],
)
def test_a_claim_for_mig_instances_is_judged_by_the_memory_of_cards_in_mig_mode(mode, memory, said):
    document = template(memory=memory)
    request = document["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    request |= {"deviceClassName": "mig.hami.io", "count": 2}
    profiles = A100_PROFILES if mode == "mig" else ()
    of = api(document, pods=[pod()], mode=mode, mig_profiles=profiles)
    of.others["deviceclasses"].append(MIG)
    text = explained(of)
    assert said in text
    assert f"  main asks for 2 × MIG instance with {int(memory[:2]) << 10} MiB" in text
    assert (
        "ResourceClaimTemplate slice, request main: the choice of a MIG instance is not evaluated here."
        in text
    )


def test_a_card_in_mig_mode_is_not_shared():
    of = api(template(memory="1Gi"), pods=[pod()], mode="mig", mig_profiles=A100_PROFILES)
    assert "  2 nodes  CardTypeMismatch" in explained(of)


def foreign(name="slice"):
    document = template(name)
    document["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] = (
        "gpu.example.com"
    )
    return document


def test_claims_for_devices_of_others_are_not_ours():
    of = api(foreign(), pods=[pod()])
    of.others["deviceclasses"].append({"metadata": {"name": "gpu.example.com"}, "spec": {}})
    result = hami("explain", "pod", "web", of=of)
    assert result.exit_code == 1
    assert "requests no devices that HAMi manages" in result.stderr


def test_a_class_of_administrators_selects_our_devices():
    of = api(foreign(), pods=[pod()])
    of.others["deviceclasses"].append(
        {
            "metadata": {"name": "gpu.example.com"},
            "spec": {
                "selectors": [
                    {"cel": {"expression": 'device.driver == "gpu.hami.io"'}},
                    {"cel": {"expression": 'device.attributes["gpu.hami.io"].memoryMiB > 80000'}},
                ]
            },
        }
    )
    assert "  2 nodes  CardNotFoundCustomFilterRule" in explained(of)


@pytest.mark.parametrize(
    "change, said",
    [
        (
            lambda of: of.others.update(resourceclaimtemplates=[]),
            "ResourceClaimTemplate slice does not exist",
        ),
        (lambda of: of.others.update(deviceclasses=[]), "DeviceClass gpu.hami.io does not exist"),
        (
            lambda of: of.errors.update({CLASS_PATH: refused("get")}),
            "DeviceClass gpu.hami.io is not known: you may not get deviceclasses in the whole cluster",
        ),
        (
            lambda of: of.others.update(resourceclaimtemplates=[template(bandwidth="5")]),
            "no device of HAMi has the capacity bandwidth",
        ),
        (
            lambda of: of.others.update(resourceclaimtemplates=[template(memory="x")]),
            "ResourceClaimTemplate slice cannot be read: ",
        ),
        (
            lambda of: of.others.update(resourceslices=render_slices("d1", [gpu(by_claims=True)])),
            "HAMi's scheduler allocates the devices of 1 node, and kube-scheduler gives them to no claim",
        ),
    ],
)
def test_what_is_wrong_with_a_claim_is_told(change, said):
    of = api(template(memory="1Gi"), pods=[pod()])
    of.nodes.append(node("other"))
    change(of)
    of.others["resourceslices"] = [
        *of.others["resourceslices"],
        *render_slices("d2", [gpu("GPU-d2-0")]),
    ]
    assert said in explained(of)


@pytest.mark.parametrize(
    "claim, waits, said",
    [
        (
            template(memory="1Gi"),
            pod(),
            "A pod with the label hami.io/allocation-mode=dra gets a claim of HAMi's scheduler",
        ),
        (
            template("made", "ResourceClaim", memory="1Gi"),
            {
                **pod(),
                "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]},
            },
            "A pod with the label hami.io/allocation-mode=dra gets a claim",
        ),
        (
            template(share="30"),
            pod(),
            "makes no claim in place of these: spec.resourceClaims gpu: request main: "
            "capacity share=30, cores=0: expected",
        ),
        (
            template("mine", "ResourceClaim"),
            pod(resource_claim="mine"),
            "in place of those of templates, with a device",
        ),
    ],
)
def test_what_the_scheduler_that_allocates_claims_would_do_is_told(claim, waits, said):
    of = api(claim, pods=[waits])
    of.nodes.append(node("other"))
    of.others |= {
        "resourceclaims": [claim],
        "resourceslices": [
            *render_slices("d1", [gpu(by_claims=True)]),
            *render_slices("d2", [gpu("GPU-d2-0")]),
        ],
    }
    assert said in explained(of)


def test_a_claim_that_is_allocated_waits_for_its_node():
    own = claimed("web", "d2") | {"spec": template(kind="ResourceClaim")["spec"]}
    own["metadata"] |= {"namespace": "team", "name": "mine"}
    other = {"resource": "pods", "name": "x", "uid": "uid-x"}
    own["status"]["reservedFor"] = [other]
    text = explained(api(pods=[pod(resource_claim="mine")], claims=[*HELD, own]))
    assert "kube-scheduler can allocate its claims on d2 now" in text
    assert "ResourceClaim mine is allocated on d2: the pod waits for that node." in text
    assert "is reserved for 1 other pod: a claim of HAMi's devices is for one pod at a time" in text


def naming(resource, amount="1"):
    waits = pod(**{resource: amount, "cpu": "1"})
    del waits["spec"]["resourceClaims"], waits["spec"]["containers"][0]["resources"]["claims"]
    return waits


def standing_for(resource, name="gpu.hami.io", created=""):
    found = json.loads(json.dumps(CLASS))
    found["metadata"] |= {"name": name, "creationTimestamp": created or None}
    found["spec"]["extendedResourceName"] = resource
    return found


@pytest.mark.parametrize(
    "resource", ["example.com/gpu", "deviceclass.resource.kubernetes.io/gpu.hami.io"]
)
def test_a_resource_that_stands_for_a_claim(resource):
    of = api(pods=[naming(resource)], claims=HELD)
    of.others["deviceclasses"] = [standing_for("example.com/gpu")]
    text = explained(of)
    assert "  main asks for 1 × NVIDIA with 100 % memory, 0 cores\n" in text
    assert "  2 nodes  CardInsufficientMemory" in text
    of.others["resourceclaims"] = []
    assert "kube-scheduler can allocate its claims on d1 now" in explained(of)


@pytest.mark.parametrize(
    "change",
    [
        lambda of: of.others.update(deviceclasses=[standing_for("example.com/other")]),
        lambda of: of.others.update(
            deviceclasses=[
                standing_for("example.com/gpu", created="2026-01-01T00:00:00Z"),
                {
                    "metadata": {"name": "other", "creationTimestamp": "2026-01-02T00:00:00Z"},
                    "spec": {"extendedResourceName": "example.com/gpu"},
                },
            ]
        ),
        lambda of: of.errors.update({f"{CLAIMS}/deviceclasses": refused()}),
    ],
    ids=["another resource", "a later class of others", "may not be listed"],
)
def test_resources_that_stand_for_no_claim_of_ours(change):
    of = api(pods=[naming("example.com/gpu")])
    change(of)
    result = hami("explain", "pod", "web", of=of)
    assert result.exit_code == 1
    assert "requests no devices that HAMi manages" in result.stderr


def test_an_error_of_the_api_server_is_none_of_the_claim():
    of = api(template(memory="1Gi"), pods=[pod()])
    of.errors[CLASS_PATH] = ClusterError("broken", None)
    result = hami("explain", "pod", "web", of=of)
    assert result.exit_code == 1
    assert "the API server does not answer" in result.stderr


# Manifests


def deployment(replicas):
    made = pod()
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "team"},
        "spec": {"replicas": replicas, "template": {"metadata": {}, "spec": made["spec"]}},
    }


def run(command, tmp_path, *documents, of, args=()):
    path = tmp_path / "f.yaml"
    path.write_text("\n---\n".join(map(json.dumps, documents)))
    return hami(command, "-f", str(path), "-n", "team", *args, of=of)


def test_simulate_places_pods_with_claims_of_the_same_file(tmp_path):
    of = api(claims=HELD)
    result = run("simulate", tmp_path, template(memory="10000Mi"), deployment(4), of=of)
    assert result.exit_code == 1
    assert result.stderr == ""
    assert result.stdout.startswith(
        "deployment/web: 3 of 4 fit\n  the next does not: 2 nodes CardInsufficientMemory\n"
        "  main asks for 1 × NVIDIA with 10000 MiB, 0 cores\n  d1  1/1 CardInsufficientMemory (container main)\n"
    )
    placed = json.loads(
        run(
            "simulate",
            tmp_path,
            template(memory="10000Mi"),
            deployment(3),
            of=of,
            args=["-o", "json"],
        ).stdout
    )
    assert [(part["node"], part["cards"]) for part in placed["pods"]] == [
        ("d1", ["0"]),
        ("d2", ["0"]),
        ("d2", ["0"]),
    ]


def test_simulate_reads_templates_of_the_cluster(tmp_path):
    result = run("simulate", tmp_path, deployment(2), of=api(template(memory="40000Mi")))
    assert result.exit_code == 0
    assert result.stdout.startswith("deployment/web: 2 of 2 fit\n")


@pytest.mark.parametrize(
    "args, fit",
    [
        (["--cordon", "GPU-d1-0"], 1),
        (["--add-node", "like=d1:2"], 4),
        (["--drain", "d1"], 1),
        ([], 2),
    ],
)
def test_simulate_another_cluster(tmp_path, args, fit):
    result = run("simulate", tmp_path, template(), deployment(9), of=api(), args=args)
    assert f"deployment/web: {fit} of 9 fit" in result.stdout, result.output


def test_simulate_without_a_pod_that_holds_a_claim(tmp_path):
    holder = pod("a")
    holder["metadata"] |= {"namespace": "default", "uid": "uid-default-a"}
    holder["spec"]["nodeName"] = "d1"
    of = api(claims=HELD, pods=[holder])
    args = ["--without", "default/a"]
    assert (
        "deployment/web: 0 of 1 fit"
        in run("simulate", tmp_path, template(), deployment(1), of=of).stdout
    )
    assert (
        "deployment/web: 1 of 1 fit"
        in run("simulate", tmp_path, template(), deployment(1), of=of, args=args).stdout
    )


def bound(name, claim, template=True):
    """Bound to d1, with a claim that is allocated there."""
    holder = pod(name, resource_claim=None if template else claim["metadata"]["name"])
    holder["metadata"] |= {"namespace": "default", "uid": f"uid-default-{name}"}
    holder["spec"]["nodeName"] = "d1"
    if template:
        holder["status"]["resourceClaimStatuses"] = [
            {"name": "gpu", "resourceClaimName": claim["metadata"]["name"]}
        ]
    return holder


@pytest.mark.parametrize(
    "memory, said",
    [
        ("30000Mi", "pod/a: 1 of 1 fit"),
        ("20000Mi", "pod/a: 1 of 1 fit"),
        ("40000Mi", "pod/a: 0 of 1 fit"),
    ],
)
def test_pods_of_a_drained_node_get_their_claims_again(tmp_path, memory, said):
    mine = claimed("a", "d1", memory) | {"spec": template(memory=memory)["spec"]["spec"]}
    of = api(claims=[mine, claimed("b", "d2", "10000Mi")], pods=[bound("a", mine)])
    result = run("simulate", tmp_path, template(), deployment(0), of=of, args=["--drain", "d1"])
    assert said in result.stdout, result.output


def test_a_claim_without_a_template_stays_where_it_is_allocated(tmp_path):
    mine = claimed("a", "d1", "1000Mi") | {"spec": template(memory="1000Mi")["spec"]["spec"]}
    of = api(claims=[mine], pods=[bound("a", mine, template=False)])
    result = run("simulate", tmp_path, template(), deployment(0), of=of, args=["--drain", "d1"])
    title = f"ResourceClaim {mine['metadata']['name']}"
    assert (
        f"pod/a: 0 of 1 fit\n  the next does not: {title} is allocated already" in result.stdout
    ), result.output


def asking(resource, replicas):
    made = deployment(replicas)
    made["spec"]["template"]["spec"] = naming(resource)["spec"]
    return made


@pytest.mark.parametrize(
    "in_file", [True, False], ids=["a class of the file", "a class of the cluster"]
)
def test_simulate_and_count_pods_with_a_resource_that_stands_for_claims(tmp_path, in_file):
    of, own = api(), standing_for("example.com/gpu")
    of.others["deviceclasses"] = [] if in_file else [own]
    documents = [own | {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass"}] * in_file
    result = run("simulate", tmp_path, *documents, asking("example.com/gpu", 3), of=of)
    assert result.exit_code == 1, result.output
    assert result.stdout.startswith("deployment/web: 2 of 3 fit\n"), result.output
    counted = run(
        "capacity", tmp_path, *documents, asking("example.com/gpu", 1), of=of, args=["-o", "json"]
    )
    assert json.loads(counted.stdout)["pods"] == 2


def test_classes_are_listed_once_for_all_pods(tmp_path):
    of = api()
    of.others["deviceclasses"], asked = [standing_for("example.com/gpu")], []
    request = of.request
    of.request = lambda method, path, **fields: (
        asked.append(path) or request(method, path, **fields)
    )
    run("simulate", tmp_path, *[asking("example.com/gpu", 1)] * 3, of=of)
    assert asked.count(f"{CLAIMS}/deviceclasses") == 1


def test_a_resource_of_the_device_plugin_reads_no_classes(tmp_path):
    of = api(nodes=[fake_node("n1", (card(),))])
    of.errors[f"{CLAIMS}/deviceclasses"] = refused()
    result = run("simulate", tmp_path, naming("nvidia.com/gpu"), of=of)
    assert (result.exit_code, result.stderr) == (0, ""), result.output
    assert "you may not list" in run("simulate", tmp_path, naming("example.com/gpu"), of=of).stderr


@pytest.mark.parametrize(
    "documents, said",
    [
        ([deployment(1)], "ResourceClaimTemplate slice does not exist"),
        (
            [template(selectors=["device.x"]), deployment(1)],
            "selector device.x is not evaluated here",
        ),
        (
            [template(), pod(**{"nvidia.com/gpu": "1"})],
            "pods that request devices beside claims are not simulated",
        ),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "capacity"])
def test_what_cannot_be_simulated_is_said(tmp_path, documents, said, command):
    result = run(command, tmp_path, *documents, of=api())
    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.parametrize(
    "change",
    [
        lambda of: of.others.update(resourceclaimtemplates=[foreign()]),
        lambda of: of.errors.update(
            {f"{CLAIMS}/namespaces/team/resourceclaimtemplates/slice": refused("get")}
        ),
    ],
    ids=["of others", "that may not be read"],
)
def test_a_pod_of_the_device_plugin_may_name_claims(tmp_path, change):
    of = api(nodes=[fake_node("n1", (card(),))])
    change(of)
    result = run("simulate", tmp_path, pod(**{"nvidia.com/gpu": "1"}), of=of)
    assert result.exit_code == 0, result.output
    assert "n1" in result.stdout, result.output


def test_a_claim_that_may_not_be_read_may_be_ours(tmp_path):
    of = api()
    of.errors[f"{CLAIMS}/namespaces/team/resourceclaimtemplates/slice"] = refused("get")
    result = run("simulate", tmp_path, pod(), of=of)
    assert (
        "ResourceClaimTemplate slice is not known: you may not get resourceclaimtemplates"
        in result.stdout
    )


def test_one_claim_is_not_for_several_pods(tmp_path):
    shared = deployment(2)
    shared["spec"]["template"]["spec"] = pod(resource_claim="mine")["spec"]
    result = run("simulate", tmp_path, template("mine", "ResourceClaim"), shared, of=api())
    assert (
        "ResourceClaim mine is one claim, which is for one pod at a time: use a template"
        in result.stdout
    )


def test_capacity_counts_pods_with_claims(tmp_path):
    result = run(
        "capacity",
        tmp_path,
        template(memory="10000Mi"),
        deployment(1),
        of=api(claims=HELD),
        args=["-o", "json"],
    )
    assert json.loads(result.stdout) == {
        "pods": 3,
        "nodes": [{"node": "d2", "pods": 2}, {"node": "d1", "pods": 1}],
    }
