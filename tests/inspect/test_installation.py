"""What is left of an upgrade from HAMi's chart, as an audit finds it."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from hami.inspect.audit import audit
from hami.inspect.cluster import InspectedCluster
from hami.inspect.installation import (
    Installation,
    SchedulerDeployment,
    parse_device_class,
    parse_excess_binding,
    parse_plugins,
    parse_scheduler,
    parse_warning_policy,
)
from hami.inspect.read import Reader
from hami.inspect.read_installation import InstallationReader
from hami.inspect.snapshot import parse_snapshot, render_snapshot
from testing.cases import cases
from testing.fake_api import FakeApi, node, refused
from testing.records import record
from testing.yaml_text import read_documents
from tests.inspect.test_commands import hami

OURS = SchedulerDeployment(name="a/ours")
COUNTING = replace(OURS, counts_others=True)
HAMIS = SchedulerDeployment(name="a/hamis", is_hamis=True)
BASE = Path(__file__).parent.parent.parent / "manifests" / "base"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"


def raw(document):
    return msgspec.Raw(json.dumps(document).encode())


def deployment(*command, name="extender", args=(), replicas=2):
    containers = [
        {"name": "kube-scheduler"},
        {"name": name, "command": list(command), "args": list(args)},
    ]
    return {
        "metadata": {"namespace": "a", "name": "s"},
        "spec": {"replicas": replicas, "template": {"spec": {"containers": containers}}},
    }


def daemonset(*containers, generation=2, observed=2, desired=5, updated=5):
    return {
        "metadata": {"namespace": "a", "name": "p", "generation": generation},
        "spec": {"template": {"spec": {"containers": [{"name": name} for name in containers]}}},
        "status": {
            "observedGeneration": observed,
            "desiredNumberScheduled": desired,
            "updatedNumberScheduled": updated,
        },
    }


def policy(name, *actions):
    return {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": list(actions)},
    }


@cases(
    "item, is_hamis, counts_others",
    ("ours", deployment("hami", "scheduler"), False, False),
    ("flag", deployment("hami", "scheduler", "--foreign-reservations"), False, True),
    (
        "argument",
        deployment("hami", args=["scheduler", "--foreign_reservations=true"]),
        False,
        True,
    ),
    ("false", deployment("hami", "scheduler", "--foreign-reservations=false"), False, False),
    ("HAMi's", deployment("scheduler", name="vgpu-scheduler-extender"), True, False),
)
def test_schedulers(item, is_hamis, counts_others):
    assert parse_scheduler(raw(item)) == SchedulerDeployment(
        name="a/s", is_hamis=is_hamis, counts_others=counts_others
    )


@cases(
    "flags, allocates",
    ([], False),
    (["--dra=show"], False),
    (["--dra=show", "--dra=allocate"], True),
    (["--dra=allocate", "--dra=show"], False),
)
def test_schedulers_that_allocate_claims(flags, allocates):
    assert parse_scheduler(raw(deployment("hami", "scheduler", *flags))).allocates is allocates


def test_a_scheduler_without_replicas_is_not_there():
    assert (
        parse_scheduler(raw(deployment("hami", "scheduler", "--foreign-reservations", replicas=0)))
        is None
    )


@cases(
    "item, outdated",
    ("replaced", daemonset("device-plugin"), 0),
    ("rollout", daemonset("device-plugin", updated=3), 2),
    ("not seen", daemonset("device-plugin", observed=1), 5),
    ("HAMi's", daemonset("device-plugin", "vgpu-monitor"), 5),
    ("shrinking", daemonset(updated=9), 0),
)
def test_device_plugins(item, outdated):
    assert parse_plugins(raw(item)) == (5, outdated)


@cases(
    "item, name",
    (policy("hami-placement", "Deny"), None),
    (policy("hami-placement", "Warn", "Audit"), "hami-placement"),
    (policy("hami-placement", "Deny", "Audit"), None),
    (policy("another", "Warn"), None),
)
def test_policies(item, name):
    assert parse_warning_policy(raw(item)) == name


@cases(
    "state, rule, texts, remedy",
    (
        "flag",
        Installation(schedulers=(COUNTING,)),
        "UpgradeUnfinished",
        ["--foreign-reservations"],
        "run helm upgrade again",
    ),
    (
        "rollout",
        Installation(schedulers=(COUNTING,), plugins=5, outdated_plugins=2),
        "UpgradeUnfinished",
        ["--foreign-reservations", "2 of 5 device plugins are not replaced yet"],
        "when all device plugins are replaced",
    ),
    (
        "policies",
        Installation(schedulers=(COUNTING,), warning_policies=("hami-a", "hami-b")),
        "UpgradeUnfinished",
        ["--foreign-reservations", "the policies hami-a, hami-b only warn"],
        "run helm upgrade again",
    ),
    (
        "beside HAMi",
        Installation(schedulers=(COUNTING, HAMIS)),
        "UpgradeUnfinished",
        ["--foreign-reservations", "HAMi's scheduler a/hamis is installed beside it"],
        "helm uninstall",
    ),
    (
        "beside HAMi without the flag",
        Installation(schedulers=(OURS, HAMIS)),
        "UpgradeUnfinished",
        ["a/hamis is installed beside it"],
        "helm uninstall",
    ),
    (
        "policies alone",
        Installation(schedulers=(OURS,), warning_policies=("hami-a",)),
        "PoliciesWarn",
        ["hami-a only warn"],
        "set policies.mode=deny",
    ),
)
def test_what_is_left_is_found(state, rule, texts, remedy):
    (finding,) = audit(InspectedCluster(replace(record([]), installation=state)))
    assert finding.rule == rule
    assert finding.remedy.startswith(remedy)
    parts = finding.problem.split("; ")
    assert len(parts) == len(texts)
    assert all(text in part for text, part in zip(texts, parts))


@cases(
    "state",
    ("nothing", Installation()),
    ("ours in a rollout", Installation(schedulers=(OURS,), plugins=5, outdated_plugins=5)),
    ("HAMi's alone", Installation(schedulers=(HAMIS,))),
)
def test_what_is_finished(state):
    assert audit(InspectedCluster(replace(record([]), installation=state))) == []


APART = replace(
    OURS,
    name="kube-system/hami-scheduler",
    account="hami-scheduler",
    extender="hami-scheduler-extender",
)


def of_manifests(kind, name):
    """Returns an object of manifests/base."""
    (found,) = [
        item
        for path in BASE.glob("*.yaml")
        for item in read_documents(path.read_text())
        if item and item.get("kind") == kind and item["metadata"]["name"] == name
    ]
    return found


def binding(role, *accounts, kind="ClusterRole", namespace="kube-system"):
    return {
        "metadata": {"name": "b"} | ({"namespace": namespace} if kind == "Role" else {}),
        "roleRef": {"kind": kind, "name": role},
        "subjects": [
            {"kind": "ServiceAccount", "name": name, "namespace": namespace} for name in accounts
        ],
    }


def test_the_accounts_of_the_shipped_deployment():
    assert parse_scheduler(raw(of_manifests("Deployment", "hami-scheduler"))) == APART


@cases(
    "item, found",
    (
        "cluster",
        binding("hami-scheduler", "hami-scheduler"),
        ("clusterrolebinding", "b", "clusterrole/hami-scheduler", False),
    ),
    (
        "namespace",
        binding("hami-scheduler", "hami-scheduler", kind="Role"),
        ("rolebinding", "kube-system/b", "role/hami-scheduler", False),
    ),
    (
        "both accounts",
        binding("hami-scheduler-extender", "hami-scheduler-extender", "hami-scheduler"),
        ("clusterrolebinding", "b", "clusterrole/hami-scheduler-extender", True),
    ),
    ("extender", binding("hami-scheduler-extender", "hami-scheduler-extender"), None),
    ("kube-scheduler", binding("system:kube-scheduler", "hami-scheduler"), None),
    ("another namespace", binding("hami-scheduler", "hami-scheduler", namespace="elsewhere"), None),
    (
        "nobody",
        {"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "hami-scheduler"}},
        None,
    ),
)
def test_rights_of_the_former_account(item, found):
    parsed = parse_excess_binding(raw(item), [OURS, APART])
    assert (parsed and (parsed.kind, parsed.name, parsed.role, parsed.has_extender)) == found
    assert parsed is None or parsed.account == "kube-system/hami-scheduler"


@cases(
    "schedulers",
    ("no scheduler", []),
    ("one account", [replace(APART, extender="")]),
    (
        "HAMi's beside it",
        [APART, replace(APART, name="kube-system/hamis", extender="", is_hamis=True)],
    ),
)
def test_rights_that_a_scheduler_needs(schedulers):
    assert (
        parse_excess_binding(raw(binding("hami-scheduler", "hami-scheduler")), schedulers) is None
    )


@cases(
    "item, remedy",
    (
        "cluster",
        binding("hami-scheduler", "hami-scheduler"),
        "kubectl delete clusterrolebinding/b clusterrole/hami-scheduler\n",
    ),
    (
        "namespace",
        binding("hami-scheduler", "hami-scheduler", kind="Role"),
        "kubectl delete rolebinding/b role/hami-scheduler -n kube-system\n",
    ),
    (
        "both accounts",
        binding("hami-scheduler-extender", "hami-scheduler-extender", "hami-scheduler"),
        "run helm upgrade again",
    ),
)
def test_an_audit_says_how_to_take_them_back(item, remedy):
    of = FakeApi(
        [node("n1")],
        others={
            "deployments": [of_manifests("Deployment", "hami-scheduler")],
            ("rolebindings" if "namespace" in item["metadata"] else "clusterrolebindings"): [
                item,
                of_manifests("ClusterRoleBinding", "hami-scheduler-extender"),
            ],
        },
    )
    shown = hami("audit", of=of).stdout
    assert shown.count("LeftoverRights: ") == 1
    assert "account kube-system/hami-scheduler " in shown
    assert remedy in shown


def test_nothing_is_found_in_the_shipped_manifests():
    bindings = [
        of_manifests("ClusterRoleBinding", f"hami-scheduler-{name}")
        for name in ("kube", "volume", "extender")
    ]
    of = FakeApi(
        [node("n1")],
        others={
            "clusterrolebindings": bindings,
            "deployments": [of_manifests("Deployment", "hami-scheduler")],
            "rolebindings": [
                of_manifests("RoleBinding", f"hami-scheduler-{name}")
                for name in ("kube", "extender")
            ],
        },
    )
    assert hami("audit", of=of).exit_code == 0


CLASS = {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": "nvidia.com/gpu"}}


@cases(
    "item, parsed",
    (CLASS, ("gpu.nvidia.com", "nvidia.com/gpu")),
    (CLASS | {"spec": {}}, None),
    ({"metadata": {"name": "x"}}, None),
)
def test_device_classes(item, parsed):
    assert parse_device_class(raw(item)) == parsed


@cases(
    "resource, allocatable, lack",
    ("nvidia.com/gpu", {}, "1 node"),
    ("nvidia.com/gpu", {"nvidia.com/gpumem": "0"}, "1 node"),
    ("nvidia.com/gpu", {"nvidia.com/gpumem": "0", "nvidia.com/gpucores": "0"}, ""),
    ("example.com/gpu", {}, ""),
)
def test_a_device_class_that_takes_a_resource_is_found(resource, allocatable, lack):
    of = FakeApi(
        [node("n1")],
        others={"deviceclasses": [CLASS | {"spec": {"extendedResourceName": resource}}]},
    )
    of.nodes[0]["status"]["allocatable"] |= allocatable
    shown = hami("audit", of=of)
    assert ("DeviceClassTakesResource: device class gpu.nvidia.com: " in shown.stdout) is bool(lack)
    assert (
        f"nvidia.com/gpumem or nvidia.com/gpucores do not get to {lack}" in shown.stdout or not lack
    )


def cluster():
    return FakeApi(
        [node("n1")],
        others={
            "deployments": [deployment("hami", "scheduler", "--foreign-reservations")],
            "daemonsets": [
                daemonset("device-plugin", updated=3),
                {"metadata": {"name": "x"}, "spec": 3},
            ],
            "validatingadmissionpolicybindings": [policy("hami-placement", "Warn")],
        },
    )


def test_an_audit_reads_it_and_a_snapshot_keeps_it(tmp_path):
    of, path = cluster(), tmp_path / "kept"
    live = hami("audit", of=of)
    assert live.exit_code == 1
    assert "UpgradeUnfinished: deployment a/s: " in live.stdout
    assert "2 of 5 device plugins" in live.stdout
    assert "hami-placement only warn" in live.stdout
    assert dict(of.requests)["/apis/apps/v1/deployments"]["labelSelector"] == (
        "app.kubernetes.io/component=hami-scheduler"
    )
    path.write_bytes(hami("snapshot", of=of).stdout_bytes)
    assert hami("audit", f"--snapshot={path}").stdout == live.stdout
    path.write_bytes(hami("snapshot", "--anonymize", of=of).stdout_bytes)
    assert hami("audit", f"--snapshot={path}").exit_code == 0


def test_other_commands_do_not_read_it():
    of = cluster()
    hami("top", of=of)
    assert [path for path, _ in of.requests if path.startswith("/apis/")] == [
        "/apis/resource.k8s.io/v1/resourceslices"
    ]  # part of the record


@cases(
    "path, said",
    ("/apis/apps/v1/deployments", ["you may not list deployments in the whole cluster"]),
    (POLICIES, ["you may not list validatingadmissionpolicybindings in the whole cluster"]),
)
def test_a_missing_right_is_a_note(path, said):
    notes = []
    of = FakeApi(errors={path: refused()})
    reader = InstallationReader(Reader(of.request, note=notes.append))
    assert reader.installation() == Installation()
    assert [note.partition(":")[0] for note in notes] == said


def test_an_api_server_without_policies():
    class Older(FakeApi):
        def request(self, method, path, *, query=None):
            return super().request(method, "/no" if path == POLICIES else path, query=query)

    reader = InstallationReader(Reader(Older().request, note=pytest.fail))
    assert reader.installation() == Installation()


def test_a_snapshot_of_an_earlier_version_has_none():
    kept = replace(record([]), installation=Installation(schedulers=(COUNTING,)))
    content = json.loads(gzip.decompress(render_snapshot(kept)))
    assert content["record"].pop("installation")["schedulers"][0]["name"] == "a/ours"
    earlier = gzip.compress(json.dumps(content).encode())
    assert parse_snapshot(earlier, "f") == replace(kept, installation=Installation())
