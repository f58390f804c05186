"""``hami audit --before-upgrade``: the workloads that the scheduler's own admission would refuse."""

import json

import pytest

from hami.cli.people import make_judge
from hami.errors import HamiError, MalformedInput
from hami.inspect.audit import Finding
from hami.inspect.cluster import InspectedCluster
from hami.inspect.read import Reader
from hami.inspect.read_installation import InstallationReader
from hami.inspect.upgrade import UpgradeCheck, render_upgrade
from testing.cases import cases
from testing.fake_api import FakeApi, bound, node, pending, refused
from testing.records import record
from tests.inspect.test_commands import hami

GPU = {"nvidia.com/gpu": "1"}
GIVEN = "hami.io/vgpu-node"
RESERVED = "container c sets NVIDIA_VISIBLE_DEVICES, which is reserved for the device plugin"
FORGED = f"{GIVEN} is written by the HAMi scheduler alone"
DEPLOYMENTS, PODS = "/apis/apps/v1/deployments", "/api/v1/pods"


def container(limits=GPU, **fields):
    return {"name": "c", "resources": {"limits": limits}, **fields}


def visible(value="all"):
    """Returns a container that requests a GPU and sets a variable of the device plugin."""
    return container(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}])


def template(*containers, annotations=None, labels=None, **spec):
    return {
        "metadata": {"annotations": annotations or {}, "labels": labels or {}},
        "spec": {"containers": list(containers), **spec},
    }


def workload(kind, template, name="x", namespace="team", uid="", owner=None, **fields):
    """Returns an object with a template of pods; *owner*: kind, name and uid."""
    spec = (
        {"jobTemplate": {"spec": {"template": template}}}
        if kind == "CronJob"
        else {"template": template}
    )
    meta = {"name": name, "namespace": namespace, "uid": uid or f"uid-{kind}-{name}"}
    if owner:
        meta["ownerReferences"] = [dict(zip(("kind", "name", "uid"), owner)) | {"controller": True}]
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": meta,
        "spec": spec | fields.pop("spec", {}),
        **fields,
    }


def live(name, *containers, owner=None, **fields):
    """Returns a pod of the API server, as a scheduler has bound it."""
    return {
        "kind": "Pod",
        "metadata": workload("Pod", {}, name, owner=owner)["metadata"]
        | {
            "annotations": {GIVEN: "n1", "hami.io/vgpu-devices-allocated": "x"},
            "labels": {GIVEN: "n1"},
        },
        "spec": {"containers": list(containers), "nodeName": "n1"},
        **fields,
    }


def check(*documents, **options):
    """Returns what is found in *documents*, which are in any order."""
    upgrade = UpgradeCheck(InspectedCluster(record([])), make_judge("hami-scheduler"), **options)
    upgrade.add_all([("f.yaml", document) for document in documents])
    return upgrade


def found(*documents, **options):
    return [(finding.rule, finding.subject) for finding in check(*documents, **options).findings]


@cases(
    "pod, problem",
    ("variable", template(visible()), RESERVED),
    (
        "limit",
        template(container(env=[{"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"}])),
        "container c sets CUDA_DEVICE_MEMORY_LIMIT_0",
    ),
    ("annotation", template(container(), annotations={GIVEN: "n1"}), FORGED),
    ("label", template(container(), labels={GIVEN: "n1"}), FORGED),
    ("annotation without devices", template(container({}), annotations={GIVEN: "n1"}), FORGED),
    ("node", template(container(), nodeName="n1"), "pod has node assigned"),
    (
        "privileged",
        template(container(securityContext={"privileged": True})),
        "container c is privileged",
    ),
    ("amount", template(container({"nvidia.com/gpu": "1.5"})), "invalid nvidia.com/gpu value 1.5"),
    ("init container", template(container({}), initContainers=[visible()]), RESERVED),
    (
        "a word",
        template(container(), annotations={"hami.io/gpu-scheduler-policy": "binpak"}),
        "annotation hami.io/gpu-scheduler-policy=binpak: expected binpack, spread",
    ),
    (
        "a list",
        template(container(), annotations={"nvidia.com/use-gpuuuid": '["GPU-a"]'}),
        "annotation nvidia.com/use-gpuuuid=",
    ),
)
@pytest.mark.parametrize(
    "kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job", "CronJob"]
)
def test_a_template_that_would_be_refused(kind, pod, problem):
    (finding,) = check(workload(kind, pod)).findings
    assert (finding.rule, finding.subject) == ("Refused", f"{kind.lower()} team/x")
    assert finding.problem.startswith(problem)


@cases(
    "pod",
    ("devices", template(container())),
    ("none", template(container({}))),
    ("hidden", template(visible("none"))),
    (
        "variable without a request",
        template(container({}, env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])),
    ),
    ("selector", template(container(), nodeSelector={"a": "b"})),
    ("another scheduler", template(visible(), schedulerName="volcano")),
    ("not seen", template(container({}), labels={"hami.io/webhook": "ignore"})),
    ("seen", template(visible(), labels={"hami.io/webhook": "no"})),
)
def test_a_template_as_admission_decides(pod):
    refusals = check(workload("Deployment", pod)).findings
    verdict = make_judge("hami-scheduler")(InspectedCluster(record([])).view, pod, "team")
    problem = verdict.problem
    assert [finding.problem for finding in refusals] == ([problem] if problem else [])


@cases(
    "limits, rules",
    ("a GPU", GPU, ["Warned"]),
    ("no GPU", {}, []),
)
def test_a_template_whose_author_would_be_warned(limits, rules):
    mps = container(limits, env=[{"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/mps"}])
    findings = check(workload("Deployment", template(mps))).findings
    assert [finding.rule for finding in findings] == rules
    for finding in findings:
        assert finding.problem.startswith("container c sets CUDA_MPS_PIPE_DIRECTORY: its programs")


def test_a_pod_that_the_webhook_does_not_see_is_refused_by_a_policy():
    ignored = template(container(), labels={"hami.io/webhook": "ignore"})
    assert found(workload("Job", ignored)) == [("WebhookIgnored", "job team/x")]
    assert (
        found(workload("Job", ignored), workload("Job", template(visible()), "y"), ignored={"team"})
        == []
    )


@cases(
    "given, is_named",
    ("zero", container({"nvidia.com/gpu": 1, "nvidia.com/priority": 0}), True),
    ("default", container({"nvidia.com/gpu": "1", "nvidia.com/priority": "1"}), False),
    ("variable", container(env=[{"name": "CUDA_TASK_PRIORITY", "value": "-1"}]), True),
    ("default variable", container(env=[{"name": "CUDA_TASK_PRIORITY", "value": "1"}]), False),
    ("no devices", container({}, env=[{"name": "CUDA_TASK_PRIORITY", "value": "0"}]), False),
)
def test_a_pod_of_priority_zero_needs_a_right(given, is_named):
    assert (
        found(workload("Job", template(given))) == [("PriorityNeedsRight", "job team/x")] * is_named
    )
    assert found(
        workload("Job", template(container({}), initContainers=[given | {"name": "i"}]))
    ) == ([("PriorityNeedsRight", "job team/x")] * is_named)


@cases(
    "documents, subjects",
    ("placed by HAMi", [live("a", container())], []),
    ("refused", [live("a", visible())], ["pod team/a"]),
    ("ended", [live("a", visible(), status={"phase": "Succeeded"})], []),
    (
        "of one owner",
        [
            live("a-1", visible(), owner=("RayCluster", "a", "u")),
            live("a-2", visible(), owner=("RayCluster", "a", "u")),
        ],
        ["raycluster team/a"],
    ),
    (
        "with its owner",
        [
            live("a-1", container(), owner=("Deployment", "a", "u")),
            workload("Deployment", template(visible()), uid="u"),
        ],
        ["deployment team/x"],
    ),
    (
        "of a changed owner",
        [
            live("a-1-2", visible(), owner=("ReplicaSet", "a-1", "r")),
            workload(
                "ReplicaSet", template(visible()), "a-1", uid="r", owner=("Deployment", "x", "d")
            ),
            workload("Deployment", template(container()), uid="d"),
        ],
        [],
    ),
    (
        "owner not listed",
        [live("a-1", visible(), owner=("ReplicaSet", "a", "not listed"))],
        ["replicaset team/a"],
    ),
    ("mirror", [live("mirror", visible(), owner=("Node", "n1", "n"))], ["pod team/mirror"]),
    (
        "done",
        [
            workload(
                "Job",
                template(visible()),
                status={"conditions": [{"type": "Complete", "status": "True"}]},
            )
        ],
        [],
    ),
    (
        "suspended",
        [
            workload(
                "Job",
                template(visible()),
                status={"conditions": [{"type": "Suspended", "status": "True"}]},
            )
        ],
        ["job team/x"],
    ),
    (
        "of a CronJob",
        [
            workload("Job", template(visible()), owner=("CronJob", "x", "c")),
            workload("CronJob", template(container()), uid="c"),
        ],
        [],
    ),
    (
        "old revision",
        [
            workload(
                "ReplicaSet", template(visible()), owner=("Rollout", "r", "u"), spec={"replicas": 0}
            )
        ],
        [],
    ),
    (
        "of a Rollout",
        [
            workload(
                "ReplicaSet", template(visible()), owner=("Rollout", "r", "u"), spec={"replicas": 2}
            )
        ],
        ["rollout team/r"],
    ),
    (
        "of another group",
        [workload("Job", template(visible())) | {"apiVersion": "batch.volcano.sh/v1alpha1"}],
        [],
    ),
)
def test_only_what_makes_pods_is_named(documents, subjects):
    assert [subject for _, subject in found(*documents)] == subjects


def test_what_cannot_be_read():
    assert found(workload("Job", {"spec": {"containers": "none"}})) == [
        ("UnreadableObject", "job team/x")
    ]
    with pytest.raises(MalformedInput, match="f.yaml: kind: missing"):
        check({"metadata": {}})


def test_a_full_quota_is_no_finding(tmp_path):
    """It is the same before and after."""
    of = FakeApi([node("n1")], [bound("a", "n1", (0, 9000, 10), gpu=1, gpumem=9000)])
    of.quotas = [
        {
            "metadata": {"namespace": "default", "name": "q", "uid": "u"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "9000"}},
        }
    ]
    assert (
        hami("audit", "--before-upgrade", of=of).stdout
        == "1 workload: nothing to change before the upgrade\n"
    )


def cluster():
    return FakeApi(
        pods=[
            pending("alone", "team", gpu=1),
            live("web-1", visible(), owner=("Deployment", "web", "d")),
        ],
        others={
            "deployments": [
                workload("Deployment", template(visible()), "web", uid="d"),
                workload("Deployment", template(visible()), "web", "away"),
            ],
            "cronjobs": [
                workload("CronJob", template(container(), annotations={GIVEN: "n"}), "night")
            ],
            "daemonsets": [
                workload("DaemonSet", template(container(nodeName="n")), "each", "away")
            ],
        },
    )


def test_the_cluster_is_read_in_pages_with_nothing_but_what_makes_pods():
    of = cluster()
    result = hami("audit", "--before-upgrade", "-o", "json", of=of)
    assert result.exit_code == 1
    assert [(item["rule"], item["subject"]) for item in json.loads(result.stdout)["items"]] == [
        ("Refused", "cronjob team/night"),
        ("Refused", "deployment away/web"),
        ("Refused", "deployment team/web"),
    ]
    asked = dict(of.requests)
    assert asked[PODS]["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"
    assert asked["/api/v1/namespaces"]["labelSelector"] == "hami.io/webhook=ignore"
    assert "/api/v1/nodes" not in asked


def test_namespaces_with_the_label_are_left_out():
    of = cluster()
    of.others["namespaces"] = [{"metadata": {"name": "away"}}]
    assert "away/web" not in hami("audit", "--before-upgrade", of=of).stdout


def test_of_a_namespace():
    result = hami("audit", "--before-upgrade", "-n", "away", of=cluster())
    assert result.stdout.startswith(
        "2 workloads: 1 to change before the upgrade\n\nRefused: deployment away/web: "
    )


def test_what_may_not_be_listed_is_left_out_with_a_note():
    """Then the pods tell."""
    of = cluster()
    of.errors = {DEPLOYMENTS: refused(), "/api/v1/namespaces": refused()}
    result = hami("audit", "--before-upgrade", of=of)
    assert result.exit_code == 1
    assert "deployment team/web" in result.stdout
    assert "away/web" not in result.stdout
    assert "you may not list deployments in the whole cluster" in result.stderr
    assert "you may not list namespaces in the whole cluster" in result.stderr


def test_no_right_at_all_is_an_error():
    def refuse(method, path, *, query=None):
        raise refused()

    with pytest.raises(HamiError, match="you may not list pods in namespace team"):
        InstallationReader(Reader(refuse)).workloads("team", lambda document, place: None)


def test_offline(tmp_path):
    """With the device configuration of a snapshot, or of a file."""
    manifests, kept = tmp_path / "all.json", tmp_path / "kept"
    objects = [
        live("web-1", visible(), owner=("Deployment", "web", "d")),
        {"kind": "Service", "metadata": {}},
        workload("Deployment", template(visible()), "web", uid="d"),
    ]
    manifests.write_text(json.dumps({"kind": "List", "items": objects}))
    config = "nvidia: {resourceCountName: example.com/card}"
    kept.write_bytes(hami("snapshot", of=FakeApi([node("n1")], config=config)).stdout_bytes)
    broken = FakeApi(errors={PODS: refused()})
    result = hami("audit", "--before-upgrade", f"-f={manifests}", of=broken)
    assert result.exit_code == 1
    assert "deployment team/web" in result.stdout
    assert result.stdout.startswith("1 workload: 1 ")
    assert "they make no pods: Service" in result.stderr
    result = hami("audit", "--before-upgrade", f"-f={manifests}", f"--snapshot={kept}", of=broken)
    assert result.exit_code == 0
    assert result.stdout == "1 workload: nothing to change before the upgrade\n"
    result = hami("audit", "--before-upgrade", f"--snapshot={kept}", of=broken)
    assert result.exit_code == 2
    assert "a snapshot has no environment variables" in result.stderr
    assert hami("audit", f"-f={manifests}").exit_code == 2


def test_the_text_is_bounded():
    """Each problem with three workloads, and a number of problems."""
    common = [
        Finding("Refused", f"job team/{number:02}", "why", "change it") for number in range(12)
    ]
    lines = render_upgrade(40, common).splitlines()
    assert lines == [
        "40 workloads: 12 to change before the upgrade",
        "",
        "Refused: job team/00, job team/01, job team/02 and 9 more: why",
        "  → change it",
    ]
    lines = render_upgrade(
        99,
        [
            *common,
            *(Finding("Refused", "job a/b\x1b", f"{number:03}", "do") for number in range(60)),
        ],
    ).splitlines()
    assert lines[2].startswith("Refused: job team/00")
    assert lines[5] == "Refused: job a/b?: 000"
    assert lines[-1] == "and 11 more"
    assert len(lines) == 1 + 50 * 3 + 2
