"""The chart has the objects of the overlays, takes the values of HAMi's chart, and says what is wrong with others."""

from __future__ import annotations

import json
import re
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from hami import __version__
from hami.cli import main
from hami.codec.documents import parse_own_yaml
from testing.accounts import CLAIM_CONTROLLER
from testing.binaries import DEFAULT
from testing.cases import cases
from testing.hami_values import upstream_values, upstream_versions
from testing.helm_chart import CA, CHART, ROOT, Helm, HelmError, with_images
from testing.helm_examples import (
    CONFIG,
    EVERYTHING,
    EXAMPLES,
    STRICT,
    RenderedExamples,
    by_kind_and_name,
)
from testing.kustomize import build
from testing.trusted_names import patterns_that_permit
from testing.yaml_text import read_documents

pytestmark = pytest.mark.files
Object = dict[str, Any]
OF_HELM = {"helm.sh/chart", "app.kubernetes.io/version", "app.kubernetes.io/managed-by"}
RENAMED = {"ClusterRoleBinding/hami-device-plugin-rights": "ClusterRoleBinding/hami-device-plugin"}
"""A binding of HAMi's chart has the name on the right, and another role, which cannot change."""


def folded(item: Any) -> Any:
    """Returns *item* with single spaces in expressions: the libraries of Helm and kustomize fold lines differently."""
    if isinstance(item, dict):
        return {
            key: " ".join(value.split()) if key == "expression" else folded(value)
            for key, value in item.items()
        }
    return [folded(value) for value in item] if isinstance(item, list) else item


def normal(items: list[Object]) -> dict[str, Object]:
    """Returns the objects by kind and name, without what only Helm or only kustomize adds: labels of the chart,
    checksums, and the suffix of a generated ConfigMap."""
    found = {}
    for item in folded(deepcopy(items)):
        if "hook" in str(item["metadata"].get("annotations", "")):
            continue
        if "AdmissionPolicy" in item["kind"]:  # kustomize does not know that it has no namespace
            item["metadata"].pop("namespace", None)
        for place in (item, item.get("spec", {}).get("template", {})):
            labels = place.get("metadata", {}).get("labels", {})
            for label in OF_HELM & labels.keys():
                del labels[label]
            notes = place.get("metadata", {}).get("annotations", {})
            for note in [key for key in notes if key.startswith(("checksum/", "helm.sh/"))]:
                del notes[note]
            if place.get("metadata", {}).get("annotations") == {}:
                del place["metadata"]["annotations"]
        text = re.sub(r'("name": "hami-[a-z-]+)-[a-z0-9]{10}"', r'\1"', json.dumps(item))
        item = json.loads(text)
        key = f"{item['kind']}/{item['metadata']['name']}"
        item["metadata"]["name"] = RENAMED.get(key, key).partition("/")[2]
        found[RENAMED.get(key, key)] = item
    return found


def kustomized(folder: Path, overlay: str, components: list[str], **more: object) -> list[Object]:
    """Builds an overlay with the labels of a release named hami."""
    shutil.copytree(ROOT / "manifests", folder / "manifests")
    labels = {"app.kubernetes.io/name": "hami", "app.kubernetes.io/instance": "hami"}
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"manifests/{overlay}"],
                "components": [f"manifests/components/{name}" for name in components],
                "labels": [{"pairs": labels, "includeSelectors": True}],
                **more,
            }
        )
    )
    return build(folder)


SETTINGS: dict[str, tuple[str, list[str], Object]] = {
    "self-signed": ("overlays/self-signed", [], {}),
    "own-certificate": ("base", [], {"certificates": {"mode": "secret"}}),
    "cert-manager": (
        "overlays/cert-manager",
        [],
        {"scheduler": {"certManager": {"enabled": True}}},
    ),
    "hami-limiter": ("overlays/self-signed", ["hami-limiter"], {"limiter": {"hami": True}}),
    "region-mount": ("overlays/self-signed", ["region-mount"], {"limiter": {"regionMount": True}}),
    "memory-wall": ("overlays/self-signed", ["memory-wall"], {"limiter": {"memoryWall": True}}),
    "mig": ("overlays/self-signed", ["mig"], {"mig": True}),
    "admission-policies": (
        "overlays/self-signed",
        ["admission-policies"],
        {"admission": {"mode": "policy"}},
    ),
    "prometheus": ("overlays/self-signed", ["prometheus"], {"prometheus": {"enabled": True}}),
    "selinux": ("overlays/self-signed", ["selinux"], {"selinux": {"enabled": True}}),
    "strict": ("overlays/self-signed", ["strict"], {"device-config": {"content": STRICT}}),
    "dashboard": ("overlays/self-signed", ["dashboard"], {"dashboard": {"enabled": True}}),
    "inspect-api": (
        "overlays/self-signed",
        ["dashboard", "inspect-api"],
        {"dashboard": {"enabled": True, "inspectApi": True}},
    ),
    "dra": ("overlays/self-signed", ["dra"], {"dra": {"enabled": True}}),
    "dra-allocate": (
        "overlays/self-signed",
        ["dra", "dra-allocate"],
        {"dra": {"enabled": True, "allocate": True}},
    ),
    "no-preemption": (
        "overlays/self-signed",
        ["no-preemption"],
        {"scheduler": {"preemption": {"mode": "off"}}},
    ),
    "gpu-operator-client": (
        "overlays/self-signed",
        ["gpu-operator-client"],
        {"gpuOperator": {"client": True}},
    ),
    "remediation": (
        "overlays/self-signed",
        ["remediation"],
        {"scheduler": {"remediation": {"mode": "evict"}}},
    ),
    "defragment": (
        "overlays/self-signed",
        ["defragment"],
        {"scheduler": {"defragment": "apply"}},
    ),
    "usage": (
        "overlays/self-signed",
        ["dashboard", "usage"],
        {"dashboard": {"enabled": True}, "scheduler": {"usage": {"namespace": "hami-usage"}}},
    ),
    "no-clean-rejected": (
        "overlays/self-signed",
        ["no-clean-rejected"],
        {"scheduler": {"cleanRejected": "none"}},
    ),
    "all": (
        "overlays/cert-manager",
        ["hami-limiter", "region-mount", "mig", "selinux", "strict", "prometheus", "dashboard"],
        EVERYTHING,
    ),
    "kind": ("overlays/kind", [], {"devicePlugin": {"mockCards": True}}),
}


def test_every_component_has_a_value():
    """The component self-signed is part of an overlay."""
    components = {
        path.parent.name
        for path in (ROOT / "manifests" / "components").glob("*/kustomization.yaml")
    }
    assert components == {name for _, names, _ in SETTINGS.values() for name in names} | {
        "self-signed"
    }


@pytest.mark.parametrize("case", SETTINGS)
def test_chart_and_overlay_have_the_same_objects(helm, tmp_path, case):
    overlay, components, values = SETTINGS[case]
    more: Object = {}
    if "usage" in components:  # what is in a namespace of its own
        more = {"resources": [f"manifests/{overlay}", "manifests/usage"]}
    if content := values.get("device-config"):
        (tmp_path / "device-config.yaml").write_text(content["content"])
        more = {
            "configMapGenerator": [
                {
                    "name": "hami-scheduler-device",
                    "namespace": "kube-system",
                    "behavior": "replace",
                    "files": ["device-config.yaml"],
                }
            ]
        }
    wanted, found = (
        normal(kustomized(tmp_path, overlay, components, **more)),
        normal(helm.template(values)),
    )
    assert found.keys() == wanted.keys()
    for name, item in wanted.items():
        assert found[name] == item, name


def references(item: Any, key: str = "") -> set[str]:
    """Returns the names of ConfigMaps, Secrets, accounts, roles and policies that *item* refers to."""
    if isinstance(item, list):
        return set().union(*(references(value, key) for value in item))
    if not isinstance(item, dict):
        return set()
    found = {item["name"]} if key in ("configMap", "roleRef", "subjects", "service") else set()
    found |= {
        value
        for name, value in item.items()
        if name in ("serviceAccountName", "policyName", "secretName")
    }
    return found.union(*(references(value, name) for name, value in item.items()))


@cases(
    "release, name, mode",
    ("hami", "hami", "self-signed"),
    ("gpu", "gpu-hami", "self-signed"),
    ("gpu", "gpu-hami", "cert-manager"),
    ("hami-test", "hami-test", "secret"),
)
def test_all_names_follow_the_release(helm, release, name, mode):
    values = (
        {"scheduler": {"certManager": {"enabled": True}}}
        if mode == "cert-manager"
        else {"certificates": {"mode": mode}}
    )
    items = helm.template(values, release=release, namespace="hami-system")
    text = yaml.safe_dump_all(items)
    assert "kube-system" not in text
    names = {item["metadata"]["name"] for item in items}
    assert all(found.startswith(f"{name}-") for found in names)
    others = {
        "system:kube-scheduler",
        "system:volume-scheduler",
        f"{name}-scheduler-tls",
        f"{name}-dashboard-tls",
        f"{name}-ca",
        "kube-root-ca.crt",
    }
    assert references(items) <= names | others
    for item in items:
        if (
            item["kind"] == "ValidatingAdmissionPolicy"
            and item["metadata"]["name"] == f"{name}-ca-bundle"
        ):
            assert f"[^:]*{name}-scheduler[^:]*" in str(item)
            assert f"contains('{name}-webhook')" in str(item)
    (token,) = (item for item in items if item.get("type") == "kubernetes.io/service-account-token")
    assert token["metadata"]["annotations"] == {
        "kubernetes.io/service-account.name": f"{name}-scheduler-extender"
    }
    if mode == "self-signed":
        assert f"--self-signed-cert-secret={name}-scheduler-self-signed" in text
        assert f"--self-signed-webhook={name}-webhook" in text


WRONG: dict[str, tuple[Object, str]] = {
    "resource without a domain": (
        {"resourceName": "gpu"},
        'has "gpu", which is no name of a resource such as nvidia.com/gpu',
    ),
    "resource without a domain by its newer name": (
        {"devices": {"hygon": {"resourceCountName": "hcu"}}},
        'has "hcu", which is no name of a resource such as nvidia.com/gpu',
    ),
    "path that is not absolute": (
        {"devicePlugin": {"nvidiaDriverRoot": "run/nvidia"}},
        "/devicePlugin/nvidiaDriverRoot': 'run/nvidia' does not match pattern",
    ),
    "word that is no path": (
        {"devicePlugin": {"pluginPath": "auto"}},
        "/devicePlugin/pluginPath': 'auto' does not match pattern",
    ),
    "two names of one value": (
        {"resourceName": "a.b/c", "devices": {"nvidia": {"resourceCountName": "a.b/d"}}},
        "devices.nvidia.resourceCountName and resourceName are the same value, and both are set",
    ),
    "remote GPUs": (
        {"devices": {"remotegpu": {"enabled": True}}},
        "devices.remotegpu.enabled is true, which cannot be: There are no remote GPUs here",
    ),
    "mode of vNPUs": (
        {"devices": {"ascend": {"hamiVnpuMode": "enpu"}}},
        'devices.ascend.hamiVnpuMode is "enpu", which cannot be: For the soft split, set',
    ),
    "OpenShift": ({"platform": {"openshift": True}}, "platform.openshift is true, which cannot"),
    "NUMA a second time": (
        {"devicePlugin": {"numaRefit": {"enabled": True}}},
        "devicePlugin.numaRefit.enabled is true, which cannot be",
    ),
    "misspelt newer value": (
        {"devices": {"nvidia": {"resourceCoutName": "a.b/c"}}},
        "nearest are devices.nvidia.resourceCountName,",
    ),
    "type": ({"scheduler": {"replicas": "two"}}, r"at '/scheduler/replicas': got string, want"),
    "policy": (
        {"scheduler": {"defaultSchedulerPolicy": {"nodeSchedulerPolicy": "random"}}},
        r"nodeSchedulerPolicy': value must be one of 'binpack', 'spread', 'least-waste'",
    ),
    "usual pods": (
        {"scheduler": {"usualPods": "pods: 3"}},
        "scheduler.usualPods is not a YAML list of kinds of pods: ",
    ),
    "no usual pods": (
        {"scheduler": {"usualPods": "[]"}},
        "scheduler.usualPods is not a YAML list of kinds of pods: it is empty",
    ),
    "unknown": (
        {"scheduler": {"replica": 2}},
        "unknown value scheduler.replica; the nearest are scheduler.replicas,",
    ),
    "unknown group": (
        {"deviceplugin": {"deviceSplitCount": 2}},
        r"the nearest are devicePlugin.deviceSplitCount,",
    ),
    "unknown global": ({"global": {"imageTga": "1"}}, r"the nearest are global.imageTag,"),
    "two certificates": (
        {"scheduler": {"certManager": {"enabled": True}}, "certificates": {"mode": "self-signed"}},
        "contradict each other",
    ),
    "a CA too many": (
        {"certificates": {"mode": "self-signed", "caBundle": CA}},
        "caBundle belongs to .*mode=secret",
    ),
    "no certificate": (
        {"certificates": {"mode": "secret", "caBundle": "eA=="}},
        "caBundle is not a certificate",
    ),
    "flag": (
        {"devicePlugin": {"extraArgs": ["--split=2"]}},
        "devicePlugin.extraArgs has --split=2, a flag that our",
    ),
    "port": (
        {"scheduler": {"service": {"httpTargetPort": 70000}}},
        "httpTargetPort': maximum: got 70,000, want",
    ),
    "mode": ({"certificates": {"mode": "vault"}}, r'certificates.mode is "vault": expected auto,'),
    "preemption": (
        {"scheduler": {"preemption": {"mode": "maybe"}}},
        "mode': value must be one of 'on', 'off', 'str",
    ),
    "run time": (
        {"scheduler": {"preemption": {"minRuntime": "ten minutes"}}},
        "minRuntime': 'ten minutes' does not",
    ),
    "take-over": ({"takeOver": "yes"}, r'takeOver is "yes": expected auto, always or never'),
    "monitor alone": (
        {"monitor": {"enabled": True}, "devicePlugin": {"enabled": False}},
        "needs the device plugin",
    ),
    "mock alone": (
        {"devicePlugin": {"enabled": False, "mockCards": True}},
        "set devicePlugin.enabled to true",
    ),
    "runtime class": (
        {"devicePlugin": {"createRuntimeClass": True}},
        "set devicePlugin.runtimeClassName",
    ),
    "pod security policy": (
        {"podSecurityPolicy": {"enabled": True}},
        "Kubernetes 1.25 has removed",
    ),
    "no kube-scheduler": (
        {"scheduler": {"kubeScheduler": {"enabled": False}}},
        "serves only the kube-scheduler of",
    ),
    "policies of admission and strict": (
        {"admission": {"mode": "policy"}, "strict": True},
        "strict needs admission",
    ),
    "policies of admission and claims": (
        {"admission": {"mode": "policy"}, "dra": {"enabled": True, "allocate": True}},
        "dra.allocate needs admission.mode=webhook",
    ),
    "policies of admission alone": (
        {"admission": {"mode": "policy"}, "policies": {"enabled": False}},
        "admission.mode=policy needs policies.enabled",
    ),
    "policies of admission without a name": (
        {
            "admission": {"mode": "policy"},
            "device-config": {"content": "nvidia: {resourceCountName: a.b/gpu}"},
        },
        "needs nvidia.resourceCoreName in the device configuration, such as nvidia.com/gpucores",
    ),
    "dra without plugin": (
        {"dra": {"enabled": True}, "devicePlugin": {"enabled": False}},
        "needs the device plugin",
    ),
    "dra of hami": (
        {"dra": {"enabled": True}, "takeOver": "always"},
        "a driver whose claims ours does not serve",
    ),
    "dra of hami, reused": (
        {"dra": {"enabled": True}, "hami-dra": {"drivers": {}}},
        "and leave out hami-dra",
    ),
    "resource without dra": (
        {"dra": {"extendedResource": "example.com/gpu"}},
        "belongs to dra.enabled: set it to",
    ),
    "budgets without records": (
        {"scheduler": {"overBudget": {"action": "refuse"}}},
        "overBudget.action=refuse needs the records of usage: set scheduler.usage.namespace",
    ),
    "a priority class is missing": (
        {"scheduler": {"usage": {"namespace": "u"}, "overBudget": {"action": "demote"}}},
        "demote needs a priority class: set scheduler.overBudget.priorityClassName",
    ),
    "a priority class is left over": (
        {"scheduler": {"overBudget": {"priorityClassName": "low"}}},
        "priorityClassName belongs to .*=demote, but the action is warn",
    ),
    "budgets without the webhook": (
        {
            "admission": {"mode": "policy"},
            "scheduler": {"usage": {"namespace": "u"}, "overBudget": {"action": "refuse"}},
        },
        "scheduler.overBudget.action needs admission.mode=webhook",
    ),
    "allocation without dra": ({"dra": {"allocate": True}}, "dra.allocate belongs to dra.enabled"),
    "resource of the plugin": (
        {"dra": {"enabled": True, "extendedResource": "nvidia.com/gpu"}},
        "is nvidia.com/gpu, a resource of the device plugin, .* name another one",
    ),
    "renamed resource of the plugin": (
        {
            "resourceName": "example.com/gpu",
            "dra": {"enabled": True, "extendedResource": "example.com/gpu"},
        },
        "is example.com/gpu, a resource of the device",
    ),
    "no resource": (
        {"dra": {"enabled": True, "extendedResource": "gpu"}},
        "extendedResource': 'gpu' does not match",
    ),
    "host network": (
        {"devicePlugin": {"hostNetwork": True}},
        "set devicePlugin.hostNetwork to false",
    ),
    "limiter elsewhere": (
        {"devicePlugin": {"libPath": "/opt/vgpu"}},
        r"puts this directory at /usr/local/vgpu:",
    ),
    "regions elsewhere": (
        {"devicePlugin": {"monitor": {"ctrPath": "/a"}}},
        "at /usr/local/vgpu/containers:",
    ),
    "another configuration": (
        {"scheduler": {"kubeScheduler": {"extraNewArgs": ["--config=/a"]}}},
        "leave the flag",
    ),
    "device config": (
        {"device-config": {"content": "- a"}},
        "device-config.content is not a YAML map",
    ),
    "chip": (
        {"device-config": {"content": "iluvatars: [{commonWord: X}]"}},
        "has the chip X, .* tools.policies",
    ),
    "node config": (
        {"devicePlugin": {"nodeConfiguration": {"config": "{"}}},
        "nodeConfiguration.config is not JSON",
    ),
    "vendor of a package": (
        {"device-config": {"content": CONFIG + "acme: {resourceCountName: acme.example/card}\n"}},
        "has the section acme, of a vendor that this chart does not know, .* tools.policies",
    ),
    "account that no policy knows": (
        {"devicePlugin": {"serviceAccount": {"name": "gpu"}}},
        "devicePlugin.serviceAccount.name is gpu: the name must contain hami-device-plugin",
    ),
    "one account for both": (
        {"scheduler": {"serviceAccount": {"name": "hami-scheduler-extender"}}},
        "the account of kube-scheduler is not that of the extender",
    ),
    "ingress without a host": (
        {"dashboard": {"enabled": True, "ingress": {"enabled": True}}},
        "dashboard.ingress.host is empty: ",
    ),
    "flag of the dashboard": (
        {"dashboard": {"extraArgs": ["--split=2"]}},
        "dashboard.extraArgs has --split=2, a flag that our",
    ),
    "no name": ({"resourceMem": ""}, "resourceMem is empty: to do without a resource,"),
    "long name": (
        {"fullnameOverride": "hami" * 12},
        "has more than 40 characters: set a shorter fullnameOverride",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_values_are_refused_with_a_sentence(helm, case):
    values, expected = WRONG[case]
    with pytest.raises(HelmError, match=expected):
        helm.template(values)


@cases(
    "values, expected",
    ("none", {}, None),
    ("registry", {"image": {"registry": "r.example.com"}}, "r.example.com/hami:0.1.0"),
    ("registry of all", {"global": {"imageRegistry": "r.example.com"}}, "r.example.com/hami:0.1.0"),
    ("images of nodes", {"image": {"preloaded": True}}, "hami:0.1.0"),
    ("mock cards", {"devicePlugin": {"mockCards": True}}, "hami:0.1.0"),
    ("values of HAMi", upstream_values("v2.10.0"), None),
)
def test_an_installation_without_a_registry_stops_with_a_sentence(helm, values, expected):
    words = ("template", "hami", CHART, "--kube-version", DEFAULT.kube_version)
    if expected is None:
        with pytest.raises(HelmError, match="has no registry, .*: set image.registry"):
            helm.run(*words, values=values)
        return
    items = by_kind_and_name(
        [item for item in read_documents(helm.run(*words, values=values)) if item]
    )
    assert container(items, "Deployment/hami-scheduler", 1)["image"] == expected


POD = {
    "affinity": {"podAffinity": {}},
    "topologySpreadConstraints": [{"maxSkew": 1}],
    "podLabels": {"team": "a"},
    "podAnnotations": {"note": "b"},
    "podSecurityContext": {"runAsUser": 7},
    "volumes": [{"name": "more", "emptyDir": {}}],
    "dnsPolicy": "Default",
    "tolerations": [{"key": "t", "operator": "Exists"}],
    "priorityClassName": "mine",
    "serviceAccount": {"create": False},
}
CONTAINER = {
    "volumeMounts": [{"name": "more", "mountPath": "/more"}],
    "securityContext": {"privileged": False},
    "livenessProbe": {"timeoutSeconds": 9},
    "resources": {"limits": {"cpu": "1"}},
}
ENV = [{"name": "HTTPS_PROXY", "value": "http://proxy"}]


@cases(
    "values, workload",
    (
        "scheduler",
        {
            "scheduler": {
                **POD,
                "hostNetwork": True,
                "strategy": {"type": "Recreate"},
                "nodeSelector": {"a": "b"},
                "kubeScheduler": {**CONTAINER, "extraEnv": ENV},
                "extender": {**CONTAINER, "extraEnv": ENV},
            }
        },
        "Deployment/hami-scheduler",
    ),
    (
        "device plugin",
        {"devicePlugin": {**POD, **CONTAINER, "extraEnvs": ENV, "nvidiaNodeSelector": {"a": "b"}}},
        "DaemonSet/hami-device-plugin",
    ),
    (
        "monitor",
        {
            "devicePlugin": {
                "nvidiaNodeSelector": {"a": "b"},
                "priorityClassName": "mine",
                "monitor": {
                    **{name: value for name, value in POD.items() if name != "priorityClassName"},
                    **CONTAINER,
                    "extraEnvs": ENV,
                    "hostNetwork": True,
                },
            }
        },
        "DaemonSet/hami-monitor",
    ),
    (
        "dashboard",
        {
            "dashboard": {
                **POD,
                **CONTAINER,
                "enabled": True,
                "hostNetwork": True,
                "extraEnv": ENV,
                "nodeSelector": {"a": "b"},
                "strategy": {"type": "Recreate"},
                "replicas": 3,
            }
        },
        "Deployment/hami-dashboard",
    ),
)
def test_the_usual_values_reach_a_workload(helm, values, workload):
    items = by_name(helm, commonLabels={"cost": "c"}, **values)
    spec = items[workload]["spec"]
    template, pod = spec["template"]["metadata"], spec["template"]["spec"]
    assert {"team": "a", "cost": "c"}.items() <= template["labels"].items()
    assert template["annotations"]["note"] == "b"
    assert pod["affinity"]["podAffinity"] == {}
    assert pod["topologySpreadConstraints"] == POD["topologySpreadConstraints"]
    assert pod["securityContext"] == {"runAsUser": 7}
    assert pod["volumes"][-1] == {"name": "more", "emptyDir": {}}
    assert (pod["dnsPolicy"], pod["priorityClassName"]) == ("Default", "mine")
    assert pod["tolerations"][-1] == {"key": "t", "operator": "Exists"}
    assert pod.get("hostNetwork", False) is ("device" not in workload)
    selector = pod["nodeSelector"]
    assert {"a": "b", "kubernetes.io/os": "linux"}.items() <= selector.items()
    assert f"ServiceAccount/{pod['serviceAccountName']}" not in items
    for found in pod["containers"]:
        assert found["volumeMounts"][-1] == {"name": "more", "mountPath": "/more"}
        assert found["securityContext"] == {"privileged": False}
        assert found["resources"] == {"limits": {"cpu": "1"}}
        assert found["livenessProbe"]["timeoutSeconds"] == 9
        assert "httpGet" in found["livenessProbe"]
        assert ENV[0] in found["env"]
    strategies = {"Deployment/hami-scheduler", "Deployment/hami-dashboard"}
    if workload in strategies:
        assert spec["strategy"] == {"type": "Recreate"}
    for name, item in items.items():
        if name != "Pod/hami-test-placement":
            assert item["metadata"]["labels"]["cost"] == "c", name


def test_accounts_of_others_are_bound_to_the_roles(helm):
    """And no account is made of which a value says that it exists."""
    accounts = {
        "hami-scheduler": "my-hami-scheduler",
        "hami-scheduler-extender": "my-hami-scheduler-extender",
        "hami-device-plugin": "my-hami-device-plugin",
        "hami-monitor": "watcher",
        "hami-dashboard": "pages",
    }
    given = {name: {"create": False, "name": other} for name, other in accounts.items()}
    items = by_name(
        helm,
        scheduler={
            "serviceAccount": given["hami-scheduler"],
            "extender": {"serviceAccount": given["hami-scheduler-extender"]},
        },
        devicePlugin={
            "serviceAccount": given["hami-device-plugin"],
            "monitor": {"serviceAccount": given["hami-monitor"]},
        },
        dashboard={"enabled": True, "serviceAccount": given["hami-dashboard"]},
        dra={"enabled": True, "allocate": True},
    )
    usual = by_name(helm, dashboard={"enabled": True}, dra={"enabled": True, "allocate": True})
    for name, item in usual.items():
        if item["kind"] == "ServiceAccount":
            assert name not in items
        for subject, found in zip(
            item.get("subjects", ()), items.get(name, {}).get("subjects", ()), strict=False
        ):
            assert found["name"] == accounts.get(subject["name"], subject["name"])


def test_the_dashboard_has_an_ingress(helm):
    values = {
        "enabled": True,
        "className": "nginx",
        "host": "hami.example.com",
        "tlsSecret": "certificate",
        "annotations": {"a": "b"},
    }
    items = by_name(helm, dashboard={"enabled": True, "ingress": values})
    item = items["Ingress/hami-dashboard"]
    assert item["metadata"]["annotations"] == {"a": "b"}
    (rule,) = item["spec"].pop("rules")
    assert item["spec"] == {
        "ingressClassName": "nginx",
        "tls": [{"hosts": ["hami.example.com"], "secretName": "certificate"}],
    }
    (path,) = rule["http"]["paths"]
    service = items[f"Service/{path['backend']['service']['name']}"]
    assert path["backend"]["service"]["port"]["name"] in str(service["spec"]["ports"])
    assert rule["host"] == "hami.example.com"


@pytest.mark.parametrize(
    "version",
    [version for version in upstream_versions() if "mockDevicePlugin" in upstream_values(version)],
)
def test_a_release_of_hami_with_its_mock_device_plugin_keeps_its_gpus(helm, version):
    """HAMi recommends it on real clusters: it shows memory and cores of GPUs, as our device plugin does then.
    `--reuse-values` passes all values of the release."""
    values = upstream_values(version)
    for enabled in (True, False):
        values["mockDevicePlugin"]["enabled"] = enabled
        rendered = str(helm.template(values))
        assert ("--publish-capacity=requests" in rendered) is enabled
        assert "--mock-devices" not in rendered


@cases(
    "newer, older",
    (
        {"devices": {"nvidia": {"resourceCountName": "a.b/c", "deviceSplitCount": 3}}},
        {"resourceName": "a.b/c", "devicePlugin": {"deviceSplitCount": 3}},
    ),
    ({"devices": {"hygon": {"resourceMemoryName": "a.b/c"}}}, {"hcuResourceMem": "a.b/c"}),
    (
        {"devices": {"nvidia": {"runtimeClassName": "nv", "createRuntimeClass": True}}},
        {"devicePlugin": {"runtimeClassName": "nv", "createRuntimeClass": True}},
    ),
    ({"devices": {"metax": {"sgpuTopologyAware": True}}}, {"metaxsGPUTopologyAware": "true"}),
    ({"devicePlugin": {"nvidiaDriverRoot": "auto"}}, {}),
    ({"scheduler": {"kubeQPS": 20, "networkPolicy": {"enabled": True}}}, {}),
)
def test_newer_names_of_values_do_the_same(helm, newer, older):
    assert helm.template(newer) == helm.template(older)
    assert older == {} or helm.template(older) != helm.template()


@pytest.mark.parametrize("enabled", [True, False])
def test_nodes_are_labeled_for_opencost_on_request(helm, enabled):
    plugin = by_name(helm, devicePlugin={"gpuLabels": enabled})["DaemonSet/hami-device-plugin"]
    (container,) = plugin["spec"]["template"]["spec"]["containers"]
    assert ("--gpu-labels=true" in container["command"]) is enabled


def test_the_memory_of_moore_threads_cards(helm):
    rendered = str(helm.template({"devices": {"mthreads": {"memoryPerCard": [96, 160]}}}))
    assert r"memoryPerCard:\n  - 96\n  - 160" in rendered


def test_names_of_hcus_in_the_section_of_dcus(helm):
    content = "nvidia: {resourceCountName: a.b/c}\nhygon: {resourceCountName: hygon.com/hcunum}"
    rendered = str(helm.template({"device-config": {"content": content}}))
    assert "'hygon.com/hcunum'" in rendered.replace("\\'", "'")
    assert "hygon.com/dcunum" not in rendered


def test_an_older_kubernetes_is_refused(helm):
    with pytest.raises(
        HelmError,
        match="requires kubeVersion: >=1.31.0-0 which is incompatible with Kubernetes v1.30",
    ):
        helm.template(kubernetes="v1.30.9")


def test_claims_need_kubernetes_136(helm):
    with pytest.raises(HelmError, match="dra.enabled needs Kubernetes 1.36, .*; this is v1.35.4"):
        helm.template({"dra": {"enabled": True}}, kubernetes="v1.35.4")


def test_policies_of_admission_need_kubernetes_136(helm):
    with pytest.raises(
        HelmError, match="admission.mode=policy needs Kubernetes 1.36 .*, and this is v1.35.4"
    ):
        helm.template({"admission": {"mode": "policy"}}, kubernetes="v1.35.4")


def test_policies_of_admission_follow_the_device_configuration(helm):
    content = (
        CONFIG.replace("gpucoresLimits: {}", "gpucoresLimits: {team-a: 60, team-b: 5}")
        .replace("defaultCores: 0", "defaultCores: 7")
        .replace("memoryFactor: 1\n", "memoryFactor: 1024\n", 1)
    )
    objects = by_name(helm, admission={"mode": "policy"}, **{"device-config": {"content": content}})
    for key, expected in (
        (
            "MutatingAdmissionPolicy/hami-nvidia-defaults",
            {"gpucoresLimits": "{'team-a': 60, 'team-b': 5}", "defaultCores": "7"},
        ),
        (
            "ValidatingAdmissionPolicy/hami-nvidia-requests",
            {"memoryFactor": "1024", "defaultCores": "7"},
        ),
    ):
        settings = {
            variable["name"]: variable["expression"]
            for variable in objects[key]["spec"]["variables"]
        }
        assert settings.items() >= expected.items()


def test_policies_of_admission_follow_the_values(helm):
    objects = by_name(
        helm,
        admission={"mode": "policy"},
        resourceName="example.com/gpu",
        schedulerName="other",
        scheduler={
            "forceOverwriteDefaultScheduler": False,
            "admissionWebhook": {"whitelistNamespaces": ["default"]},
        },
        devicePlugin={"runtimeClassName": "nvidia"},
        devices={"nvidia": {"gpuCorePolicy": "force"}},
    )
    defaults = objects["MutatingAdmissionPolicy/hami-nvidia-defaults"]["spec"]
    requests = objects["ValidatingAdmissionPolicy/hami-nvidia-requests"]["spec"]
    for spec in (defaults, requests):
        text = yaml.safe_dump(spec)
        assert "example.com/gpu'" in text
        assert "nvidia.com/gpu'" not in text
        assert "hami-scheduler" not in text
        assert " in ['other', 'other-claims']" in spec["matchConditions"][0]["expression"]
        assert spec["matchConstraints"]["namespaceSelector"]["matchExpressions"][-1]["values"] == [
            "default"
        ]
    settings = {variable["name"]: variable["expression"] for variable in defaults["variables"]}
    assert (
        settings.items()
        >= {
            "schedulerName": "'other'",
            "runtimeClassName": "'nvidia'",
            "gpuCorePolicy": "'force'",
        }.items()
    )


@pytest.mark.parametrize(
    "values",
    [{}, {"admission": {"mode": "policy"}}, {"dra": {"enabled": True, "allocate": True}}],
    ids=str,
)
def test_in_another_namespace_the_policies_permit_the_same_accounts_of_kubernetes(helm, values):
    """The chart moves its own accounts, and no others. No name permits by a pattern there, either."""
    items = [
        item
        for item in helm.template(values, release="gpu", namespace="gpu-sharing")
        if "AdmissionPolicy" in item["kind"] or "Webhook" in item["kind"]
    ]
    assert [sentence for item in items for sentence in patterns_that_permit(item)] == []
    accounts = set(re.findall(r"'(system:serviceaccount:[^']*)'", str(items).replace("\\'", "'")))
    assert accounts == ({CLAIM_CONTROLLER} if "dra" in values else set())
    assert "kube-system" not in str(items).replace(CLAIM_CONTROLLER, "")


@cases(
    "path, registry",
    ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins_registry"),
    ("/data/kubelet/device-plugins", "/data/kubelet/plugins_registry"),
)
def test_the_kubelet_finds_the_driver_of_claims_beside_device_plugins(helm, path, registry):
    objects = by_name(helm, dra={"enabled": True}, devicePlugin={"pluginPath": path})
    pod = objects["DaemonSet/hami-device-plugin"]["spec"]["template"]["spec"]
    assert registry in [
        volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume
    ]


def test_a_resource_may_stand_for_a_card_that_claims_allocate(helm):
    (found,) = (
        item
        for item in helm.template({"dra": {"enabled": True, "extendedResource": "example.com/gpu"}})
        if item["kind"] == "DeviceClass" and item["metadata"]["name"] == "gpu.hami.io"
    )
    assert found["spec"]["extendedResourceName"] == "example.com/gpu"


@pytest.mark.parametrize("version, seconds", [("v1.32.9", None), ("v1.33.0", 60)])
def test_pods_that_no_node_fits_wait_longer_where_they_are_also_tried_earlier(
    helm, version, seconds
):
    """kube-scheduler 1.33 tries them before their time if it has nothing else to do."""
    items = {
        item["metadata"]["name"]: item
        for item in helm.template(kubernetes=version)
        if item["kind"] == "ConfigMap"
    }
    config = parse_own_yaml(items["hami-kube-scheduler"]["data"]["config.yaml"])
    assert config.get("podMaxBackoffSeconds") == seconds


@pytest.mark.parametrize("version", upstream_versions())
def test_the_defaults_of_a_version_of_hami_are_taken(helm, version):
    """As with `--reuse-values`, which passes them all. They name HAMi's image and its version; ours has neither."""
    items = normal(helm.template(upstream_values(version)))
    assert items.keys() >= {
        "Deployment/hami-scheduler",
        "DaemonSet/hami-device-plugin",
        "Service/hami-scheduler",
    }
    pod = items["Deployment/hami-scheduler"]["spec"]["template"]["spec"]
    kube, extender = (container["image"] for container in pod["containers"])
    assert extender == "hami:0.1.0"
    assert kube.endswith("kube-scheduler:v1.37.2")
    plugin = items["DaemonSet/hami-device-plugin"]["spec"]["template"]["spec"]["containers"][0]
    assert plugin["image"] == "hami-device-plugin:0.1.0"
    assert "-v=false" not in plugin["command"]
    ports = {
        port["port"]: port.get("nodePort")
        for port in items["Service/hami-scheduler"]["spec"]["ports"]
    }
    if version == "v2.11.0":  # its Service is for the cluster only, and its port needs no privilege
        port, sysctls = 9443, None
        assert ports == {443: None, 31993: None}
    else:
        port, sysctls = 443, [{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}]
        assert ports == {443: 31998, 31993: 31993}
    # as HAMi's Service, which returns with a rollback; its pods have had two names for the port
    webhook = items["Service/hami-scheduler"]["spec"]["ports"][0]
    assert (webhook["name"], webhook["targetPort"]) == ("http", port)
    assert items["NetworkPolicy/hami-scheduler"]["spec"]["ingress"][0]["ports"] == [{"port": port}]
    assert pod["containers"][1]["ports"][0]["containerPort"] == port
    assert f"--http_bind=:{port}" in pod["containers"][1]["command"]
    assert pod["securityContext"].get("sysctls") == sysctls


def test_values_without_effect_are_named_after_the_installation(helm):
    values = {
        "scheduler": {"patch": {"runAsUser": 3000}, "livenessProbe": True},
        "version": "v2.6.1",
    }
    told = helm.run("install", "hami", CHART, "--dry-run=client", values=values).partition(
        "NOTES:"
    )[2]
    assert "kubectl hami top" in told
    assert "scheduler.patch.runAsUser: There is no job" in told
    assert "scheduler.livenessProbe: Both" in told
    assert "version:" not in told


@cases(
    "values, is_told",
    ({"mode": "secret"}, True),
    ({"mode": "secret", "caBundle": CA}, False),
    ({"mode": "self-signed"}, False),
)
def test_a_certificate_without_its_ca_is_named_after_the_installation(helm, values, is_told):
    output = helm.run("install", "hami", CHART, "--dry-run=client", values={"certificates": values})
    assert ("set certificates.caBundle" in output.partition("NOTES:")[2]) == is_told


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Object]]:
    return RenderedExamples(Helm(tmp_path_factory.mktemp("examples")))


@pytest.mark.parametrize("name", ["defaults", "chart of hami", "everything"])
def test_helm_lint_finds_nothing(helm, name):
    assert "0 chart(s) failed" in helm.run("lint", CHART, "--strict", values=EXAMPLES[name])


def test_the_packaged_chart_is_complete(helm, rendered, tmp_path):
    """Helm follows the links to files of others."""
    helm.run("package", CHART, "--destination", tmp_path)
    text = helm.run(
        "template",
        "hami",
        tmp_path / f"hami-{__version__}.tgz",
        "--namespace",
        "kube-system",
        "--kube-version",
        DEFAULT.kube_version,
        values=with_images(EXAMPLES["everything"]),
    )
    assert [item for item in read_documents(text) if item] == list(rendered["everything"].values())


def by_name(helm: Helm, **values: object) -> dict[str, Object]:
    return by_kind_and_name(helm.template(dict(values)))


def test_a_take_over_keeps_the_limiter_and_adds_no_network_policies_and_no_refusals(helm):
    """Until a value says otherwise."""
    for values, limiter, policies, actions in (
        ({}, None, True, ["Deny"]),
        ({"takeOver": "always"}, "limiter", False, ["Warn", "Audit"]),
        (
            {
                "takeOver": "always",
                "limiter": {"hami": False},
                "networkPolicy": {"enabled": True},
                "policies": {"mode": "deny"},
            },
            None,
            True,
            ["Deny"],
        ),
    ):
        found = by_name(helm, **values)
        pod = found["DaemonSet/hami-device-plugin"]["spec"]["template"]["spec"]
        assert [one["name"] for one in pod.get("initContainers", ())] == [limiter] * (
            limiter is not None
        )
        assert ("NetworkPolicy/hami-monitor" in found) is policies
        bindings = {
            item["metadata"]["name"]: item["spec"]["validationActions"]
            for item in found.values()
            if item["kind"] == "ValidatingAdmissionPolicyBinding"
        }
        assert bindings.pop("hami-preemption") == ["Deny"]  # it holds our own account
        assert bindings.pop("hami-make-room") == ["Deny"]  # HAMi does not know the label
        assert bindings.pop("hami-budgets") == ["Deny"]  # nor the annotation
        assert bindings
        assert all(found == actions for found in bindings.values())


@cases(
    "values, image",
    ({}, "docker.io/projecthami/hami:v2.10.0"),
    (
        {
            "devicePlugin": {
                "image": {
                    "registry": "mirror.example.com:5000",
                    "repository": "a/projecthami/hami",
                    "tag": "v2.9.0",
                }
            }
        },
        "mirror.example.com:5000/a/projecthami/hami:v2.10.0",
    ),
    (
        {"global": {"imageRegistry": "mirror.example.com"}},
        "mirror.example.com/projecthami/hami:v2.10.0",
    ),
)
def test_the_limiter_of_hami_comes_from_where_its_image_came_from(helm, values, image):
    found = by_name(helm, takeOver="always", **values)
    (init,) = found["DaemonSet/hami-device-plugin"]["spec"]["template"]["spec"]["initContainers"]
    assert init["image"] == image


def test_mock_cards_need_no_limiter_of_hami(helm):
    found = by_name(helm, takeOver="always", devicePlugin={"mockCards": True})
    pod = found["DaemonSet/hami-device-plugin"]["spec"]["template"]["spec"]
    assert [one["name"] for one in pod["initContainers"]] == ["cards"]


def test_a_later_chart_of_hami_may_have_more_values(helm):
    """With `--reuse-values`, Helm passes all its defaults, and those of v2.10 are among them."""
    helm.template(
        {**upstream_values("v2.10.0"), "openshift": {"enabled": False, "scc": {"create": True}}}
    )
    with pytest.raises(HelmError, match="unknown value openshift"):
        helm.template({"openshift": {"scc": {"create": True}}})


def test_values_name_priority_classes_and_a_label_of_nodes_can_be_removed(helm):
    found = by_name(
        helm,
        scheduler={"priorityClassName": ""},
        devicePlugin={
            "priorityClassName": "mine",
            "nvidiaNodeSelector": {"gpu": None, "nvidia.com/gpu.present": "true"},
        },
    )
    assert "priorityClassName" not in found["Deployment/hami-scheduler"]["spec"]["template"]["spec"]
    for name in ("DaemonSet/hami-device-plugin", "DaemonSet/hami-monitor"):
        pod = found[name]["spec"]["template"]["spec"]
        assert pod["priorityClassName"] == "mine"
        selector = {"nvidia.com/gpu.present": "true", "kubernetes.io/os": "linux"}
        assert pod["nodeSelector"] == selector


@cases(
    "values, names",
    ("none", {}, []),
    ("all verbs", {"clientCASecret": "clients"}, ["client-ca"]),
    ("simulations", {"simulateClientCASecret": "autoscalers"}, ["simulate-client-ca"]),
    (
        "both",
        {"clientCASecret": "clients", "simulateClientCASecret": "autoscalers"},
        ["client-ca", "simulate-client-ca"],
    ),
)
def test_a_secret_admits_clients_with_a_certificate(helm, values, names):
    pod = by_name(helm, scheduler={"extender": values})["Deployment/hami-scheduler"]["spec"][
        "template"
    ]["spec"]
    extender, secrets = (
        pod["containers"][1],
        {"client-ca": "clients", "simulate-client-ca": "autoscalers"},
    )
    assert [word for word in extender["command"] if "client-ca-file" in word] == [
        f"--{name}-file=/{name}/ca.crt" for name in names
    ]
    assert [mount for mount in extender["volumeMounts"] if "client-ca" in mount["name"]] == [
        {"name": name, "mountPath": f"/{name}", "readOnly": True} for name in names
    ]
    assert [volume for volume in pod["volumes"] if "client-ca" in volume["name"]] == [
        {"name": name, "secret": {"secretName": secrets[name]}} for name in names
    ]


@pytest.mark.parametrize(
    ("values", "flags"),
    [
        ({}, []),
        ({"mode": "on"}, []),
        ({"mode": True, "minRuntime": "10m"}, ["--preemption-min-runtime=10m"]),
        ({"mode": "strict"}, ["--preemption=strict"]),
        ({"mode": "off"}, ["--preemption=off"]),
        (
            {"mode": False, "minRuntime": "1h30m"},
            ["--preemption=off", "--preemption-min-runtime=1h30m"],
        ),
    ],
    ids=str,
)
def test_the_extender_may_evict_where_preemption_is_on(helm, values, flags):
    """In YAML, `on` and `off` without quotes are booleans."""
    items = by_name(helm, scheduler={"preemption": values})
    command = container(items, "Deployment/hami-scheduler", 1)["command"]
    assert [flag for flag in command if "preemption" in flag] == flags
    rules = items["ClusterRole/hami-scheduler-preemption"]["rules"]
    assert bool(rules) is ("--preemption=off" not in flags)
    others = [
        rule
        for name, item in items.items()
        if "scheduler-extender" in name
        for rule in item.get("rules", ())
    ]
    assert others
    assert not [
        rule for rule in others if "delete" in rule["verbs"] or "pods/status" in rule["resources"]
    ]


USUAL_PODS = "- {pods: 1, vendor: NVIDIA, count: 1, cores: 50}\n"


@cases(
    "values, flags",
    ("learnt", {}, []),
    ("given", {"usualPods": USUAL_PODS}, ["--usual-pods=/etc/hami/usual-pods.yaml"]),
)
def test_scheduler_and_dashboard_read_the_usual_pods_that_are_given(helm, values, flags):
    items = by_name(helm, scheduler=values, dashboard={"enabled": True})
    text = items["ConfigMap/hami-scheduler-device"]["data"].get("usual-pods.yaml", "")
    assert text == values.get("usualPods", "")
    for name, place in (("Deployment/hami-scheduler", 1), ("Deployment/hami-dashboard", 0)):
        command = container(items, name, place)["command"]
        assert [flag for flag in command if "usual" in flag] == flags
        notes = items[name]["spec"]["template"]["metadata"]["annotations"]
        assert ("checksum/usual-pods" in notes) is bool(flags)
    notes = items["DaemonSet/hami-device-plugin"]["spec"]["template"]["metadata"]["annotations"]
    assert "checksum/usual-pods" not in notes


def test_commands_in_the_pod_of_the_scheduler_have_its_policies(helm):
    """Beside the annotation by which kubectl finds the container, also with annotations of the user's."""
    policies = {"nodeSchedulerPolicy": "spread", "gpuSchedulerPolicy": "numa"}
    items = by_name(
        helm, scheduler={"defaultSchedulerPolicy": policies, "podAnnotations": {"a": "b"}}
    )
    given = {
        entry["name"]: entry.get("value")
        for entry in container(items, "Deployment/hami-scheduler", 1)["env"]
    }
    assert given["HAMI_NODE_SCHEDULER_POLICY"] == "spread"
    assert given["HAMI_GPU_SCHEDULER_POLICY"] == "numa"
    notes = items["Deployment/hami-scheduler"]["spec"]["template"]["metadata"]["annotations"]
    assert (notes["a"], notes["kubectl.kubernetes.io/default-container"]) == ("b", "extender")


def test_limits_of_remediation_are_flags(helm):
    limits = {"mode": "evict", "after": "1m", "share": 0, "rate": 1.5}
    items = by_name(helm, scheduler={"remediation": limits})
    command = container(items, "Deployment/hami-scheduler", 1)["command"]
    assert [flag for flag in command if "remediation" in flag] == [
        "--remediation=evict",
        "--remediation-after=1m",
        "--remediation-share=0",
        "--remediation-rate=1.5",
    ]
    assert "ClusterRole/hami-scheduler-remediation" not in by_name(helm)


@cases(
    "over, flags",
    ({}, []),
    ({"action": "refuse"}, ["--over-budget=refuse"]),
    (
        {"action": "demote", "priorityClassName": "low"},
        ["--over-budget=demote", "--over-budget-priority-class=low"],
    ),
)
def test_what_happens_over_a_budget_is_a_flag(helm, over, flags):
    items = by_name(helm, scheduler={"usage": {"namespace": "u"}, "overBudget": over})
    command = container(items, "Deployment/hami-scheduler", 1)["command"]
    assert [flag for flag in command if "over-budget" in flag] == flags
    (rule, _) = items["ClusterRole/hami-scheduler-budgets"]["rules"]
    assert rule == {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]}
    assert "ClusterRole/hami-scheduler-budgets" not in by_name(helm)


@pytest.mark.parametrize("mode", ["none", "advise", "apply"])
def test_the_extender_may_evict_only_where_moves_are_made(helm, mode):
    items = by_name(helm, scheduler={"defragment": mode})
    command = container(items, "Deployment/hami-scheduler", 1)["command"]
    flags = [flag for flag in command if "defragment" in flag]
    assert flags == ([] if mode == "advise" else [f"--defragment={mode}"])
    for name in (
        "ClusterRole/hami-scheduler-moves",
        "ValidatingAdmissionPolicy/hami-moves",
    ):
        assert (name in items) == (mode == "apply")


def test_usage_is_recorded_in_a_namespace_that_stays(helm):
    values = {"namespace": "records", "interval": "1m", "keepDays": 30}
    items = by_name(helm, scheduler={"usage": values})
    command = container(items, "Deployment/hami-scheduler", 1)["command"]
    assert sorted(flag for flag in command if "usage" in flag) == [
        "--usage-interval=1m",
        "--usage-keep-days=30",
        "--usage-namespace=records",
    ]
    kept = items["Namespace/records"]["metadata"]["annotations"]
    assert kept == {"helm.sh/resource-policy": "keep"}
    for kind in ("Role", "RoleBinding"):
        assert items[f"{kind}/hami-scheduler-usage"]["metadata"]["namespace"] == "records"
    subject = items["RoleBinding/hami-scheduler-usage"]["subjects"][0]
    account = items["ServiceAccount/hami-scheduler-extender"]["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])
    assert "Role/hami-scheduler-usage" not in by_name(helm)


def alerts_in(items: dict[str, Object]) -> list[Object]:
    groups = items["PrometheusRule/hami"]["spec"]["groups"]
    return [rule for group in groups for rule in group["rules"] if "alert" in rule]


def test_runbooks_are_places_on_the_page_of_the_release(helm):
    url = "https://example.com/alerts.md"
    alerts = alerts_in(by_name(helm, prometheus={"enabled": True, "runbookUrl": url}))
    assert {alert["annotations"]["runbook_url"] for alert in alerts} == {
        f"{url}#{alert['alert'].lower()}" for alert in alerts
    }
    alerts = alerts_in(by_name(helm, prometheus={"enabled": True}))
    assert not [alert for alert in alerts if "runbook_url" in alert["annotations"]]


def test_monitors_and_rules_have_the_labels_and_intervals_of_the_values(helm):
    """Also beside labels of all objects, which count less."""
    values = {"labels": {"release": "kps"}, "interval": "30s", "rulesInterval": "1m"}
    items = by_name(
        helm,
        prometheus={"enabled": True, **values},
        **{"global": {"labels": {"release": "other", "team": "a"}}},
    )
    kinds = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
    of_prometheus = {name: item for name, item in items.items() if item["kind"] in kinds}
    assert of_prometheus.keys() == {
        "ServiceMonitor/hami-scheduler",
        "ServiceMonitor/hami-kube-scheduler",
        "PodMonitor/hami-monitor",
        "PodMonitor/hami-device-plugin",
        "PrometheusRule/hami",
    }
    for item in of_prometheus.values():
        labels = item["metadata"]["labels"]
        assert (labels["release"], labels["team"]) == ("kps", "a")
        assert labels["app.kubernetes.io/name"] == "hami"
        spec = item["spec"]
        for endpoint in [*spec.get("endpoints", ()), *spec.get("podMetricsEndpoints", ())]:
            assert endpoint["interval"] == "30s"
        for group in spec.get("groups", ()):
            assert group["interval"] == "1m"
    deployment = items["Deployment/hami-scheduler"]["metadata"]["labels"]
    assert deployment["release"] == "other"


def test_grafana_gets_both_dashboards(helm):
    config = by_name(helm, dashboard={"grafana": True})["ConfigMap/hami-dashboard"]
    assert config["metadata"]["labels"]["grafana_dashboard"] == "1"
    files = {path.name: path.read_text() for path in (ROOT / "dashboards").glob("*.json")}
    assert config["data"] == files
    assert len(files) == 2


def test_prometheus_finds_each_port_that_it_scrapes(helm):
    """And the policies admit it there."""
    items = by_name(helm, prometheus={"enabled": True}, networkPolicy={"enabled": True})
    pods = {
        name: items[f"{kind}/hami-{name}"]["spec"]["template"]
        for kind, name in (
            ("Deployment", "scheduler"),
            ("DaemonSet", "monitor"),
            ("DaemonSet", "device-plugin"),
        )
    }
    targets = {}
    for item in items.values():
        for port in item["spec"]["ports"] if item["kind"] == "Service" else ():
            targets[port["name"]] = port["targetPort"]
    scraped = {"monitor": {"metrics"}, "device-plugin": {"health"}, "scheduler": set()}
    for item in items.values():
        for endpoint in item["spec"].get("endpoints", ()) if "Monitor" in item["kind"] else ():
            scraped["scheduler"].add(targets[endpoint["port"]])
        if item["kind"] == "PodMonitor":
            name = item["metadata"]["name"].removeprefix("hami-")
            assert {each["port"] for each in item["spec"]["podMetricsEndpoints"]} == scraped[name]
    assert scraped["scheduler"] == {"metrics", "kube-scheduler"}
    for name, ports in scraped.items():
        containers = pods[name]["spec"]["containers"]
        offered = {port["name"] for each in containers for port in each.get("ports", ())}
        assert ports <= offered
        assert ports <= admitted_ports(items, f"hami-{name}")


def admitted_ports(items: dict[str, Object], component: str) -> set[str]:
    """Returns the ports of a component to which namespaces with the label of metrics may connect."""
    allowed = {"namespaceSelector": {"matchLabels": {"hami.io/metrics": "allowed"}}}
    ports: set[str] = set()
    for item in items.values():
        if item["kind"] != "NetworkPolicy":
            continue
        selected = item["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]
        for rule in item["spec"]["ingress"] if selected == component else ():
            if allowed in rule.get("from", ()):
                ports.update(port["port"] for port in rule["ports"])
    return ports


def admitted(policy: Object, labels: dict[str, str]) -> bool:
    """Reports whether *policy* admits a pod with *labels* of its namespace by a pod selector."""
    for peer in (peer for rule in policy["spec"]["ingress"] for peer in rule.get("from", ())):
        selector = peer.get("podSelector")
        if (
            selector is not None
            and selector.get("matchLabels", {}).items() <= labels.items()
            and all(
                labels.get(term["key"]) in term["values"]
                for term in selector.get("matchExpressions", ())
            )
        ):
            return True
    return False


@pytest.mark.parametrize("overlay", ["self-signed", "upgrade-from-hami"])
def test_the_dashboard_reaches_monitors_and_users_reach_the_dashboard(tmp_path, overlay):
    """Also while HAMi's chart is installed beside, when selectors have one more label."""
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "resources": [f"manifests/overlays/{overlay}"],
                "components": ["manifests/components/dashboard"],
            }
        )
    )
    reached(build(tmp_path))


def test_the_dashboard_of_the_chart_is_reached_during_a_take_over(helm):
    for take_over in ("never", "always"):
        reached(
            helm.template(
                {
                    "dashboard": {"enabled": True},
                    "takeOver": take_over,
                    "networkPolicy": {"enabled": True},
                }
            )
        )


def reached(items: list[Object]) -> None:
    (pod,) = (
        item["spec"]["template"]
        for item in items
        if item["kind"] == "Deployment" and "dashboard" in item["metadata"]["name"]
    )
    labels = pod["metadata"]["labels"]
    policies = [item for item in items if item["kind"] == "NetworkPolicy"]
    (monitor,) = (item for item in policies if "monitor" in item["metadata"]["name"])
    assert admitted(monitor, labels)
    assert not admitted(monitor, {"app.kubernetes.io/component": "hami-scheduler"})
    closed = [
        item
        for item in policies
        if item["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    ]
    assert [item["spec"]["ingress"] for item in closed] == [[{"ports": [{"port": "dashboard"}]}]]
    (service,) = (
        item["spec"]
        for item in items
        if item["kind"] == "Service" and "dashboard" in item["metadata"]["name"]
    )
    assert service["selector"].items() <= labels.items()
    assert {port["targetPort"] for port in service["ports"]} <= {
        port["name"] for container in pod["spec"]["containers"] for port in container["ports"]
    }


@pytest.mark.parametrize("example", EXAMPLES)
def test_our_programs_have_all_flags(rendered, example):
    """Also those that HAMi's chart sets: their values are parsed."""
    for item in rendered[example].values():
        template = item.get("spec", {}).get("template", {"spec": {"containers": []}})
        for found in template["spec"]["containers"]:
            if found["command"][0] == "hami":
                _, command, *flags = found["command"]
                main.all()[command].make_context(command, flags)


def names_of(objects: dict[str, Object], kind: str) -> str:
    return " ".join(str(item) for key, item in objects.items() if key.startswith(f"{kind}/"))


HOSTILE = "x\"'\n---\nkind: Secret\nmetadata: {name: evil}\n# {{ fail `x` }} $(id) ${HOME} \\"


def open_values(text: str) -> Object:
    """Returns values with *text* wherever a value is an object of Kubernetes, or a list of words."""
    selector = {
        "matchLabels": {"a": text},
        "matchExpressions": [{"key": "b", "operator": "In", "values": [text]}],
    }
    notes = {"labels": {"a": text}, "annotations": {"b": text}}
    pod = {
        "podLabels": {"a": text},
        "podAnnotations": {"a": text},
        "podSecurityContext": {"seLinuxOptions": {"level": text}},
        "affinity": {"podAffinity": {"a": text}},
        "topologySpreadConstraints": [{"topologyKey": text}],
        "volumes": [{"name": text}],
        "serviceAccount": {"annotations": {"a": text}},
    }
    container = {
        "volumeMounts": [{"name": text}],
        "securityContext": {"seLinuxOptions": {"level": text}},
        "livenessProbe": {"a": text},
    }
    env = [{"name": "A", "value": text}]
    return {
        "commonLabels": {"c": text},
        "dashboard": {
            **pod,
            **container,
            "enabled": True,
            "extraEnv": env,
            "nodeSelector": {"a": text},
            "tolerations": [{"key": text}],
            "strategy": {"type": text},
            "ingress": {"enabled": True, "host": "example.com", "annotations": {"a": text}},
        },
        "global": {
            **notes,
            "imagePullSecrets": [text],
            "managedNodeSelectorEnable": True,
            "managedNodeSelector": {"a": text},
        },
        "scheduler": {
            **pod,
            "strategy": {"type": text},
            "nodeSelector": {"a": text},
            "tolerations": [{"key": text}],
            "extender": {
                **container,
                "extraEnv": env,
                "resources": {"limits": {"cpu": text}},
                "extraArgs": [f"--scheduler-name={text}"],
            },
            "kubeScheduler": {**container, "extraEnv": env, "extraNewArgs": [f"--v={text}"]},
            "service": notes,
            "admissionWebhook": {
                "whitelistNamespaces": [text],
                "namespaceSelector": selector,
                "objectSelector": selector,
            },
        },
        "devicePlugin": {
            **pod,
            **container,
            "nvidiaNodeSelector": {"a": text},
            "service": notes,
            "tolerations": [{"key": text}],
            "updateStrategy": {"type": text},
            "extraEnvs": [{"name": "A", "value": text}],
            "extraArgs": [f"--node-name={text}"],
            "monitor": {
                **pod,
                **container,
                "extraEnvs": env,
                "resources": {"limits": {"a": text}},
                "extraArgs": [f"--node-name={text}"],
            },
        },
    }


def replaced(item: Any, old: str, new: str) -> Any:
    """Returns *item* with *new* for *old* in all texts, and without checksums of texts."""
    if isinstance(item, dict):
        return {
            key: replaced(value, old, new)
            for key, value in item.items()
            if not key.startswith("checksum/")
        }
    if isinstance(item, list):
        return [replaced(value, old, new) for value in item]
    return item.replace(old, new) if isinstance(item, str) else item


def test_texts_in_objects_and_lists_stay_texts(helm):
    hostile, plain = (helm.template(open_values(text)) for text in (HOSTILE, "plain"))
    assert str(hostile).count("kind: Secret") > 20
    assert replaced(hostile, HOSTILE, "plain") == replaced(plain, HOSTILE, "plain")


@cases(
    "values, message",
    ("YAML", {"image": {"tag": HOSTILE}}, "at '/image/tag': .* does not match pattern"),
    ("template", {"fullnameOverride": "a $b"}, "at '/fullnameOverride': .* does not match pattern"),
    (
        "expression",
        {"resourceName": "x' || true || 'x"},
        "at '/resourceName': .* does not match pattern",
    ),
    ("resource", {"resourceName": "x:y"}, '"x:y", which is no name of a resource'),
    (
        "device configuration",
        {"device-config": {"content": CONFIG.replace("nvidia.com/gpumem", "x' in []) || ('")}},
        "no name of a resource",
    ),
    (
        "address",
        {"prometheus": {"runbookUrl": "javascript:alert(1)"}},
        "at '/prometheus/runbookUrl': .* does not match pattern",
    ),
)
def test_texts_that_could_mean_something_else_are_refused(helm, values, message):
    with pytest.raises(HelmError, match=f"(?s){message}"):
        helm.template(values)


def test_new_names_of_resources_reach_every_object(rendered):
    for old, new in (
        ("nvidia.com/gpumem", "example.com/mem"),
        ("hygon.com/dcunum", "example.com/dcu"),
        ("nvidia.com/priority", "example.com/turn"),
    ):
        for kind in ("MutatingWebhookConfiguration", "ValidatingAdmissionPolicy"):
            found = names_of(rendered["names of resources"], kind)
            assert f"'{new}'" in found
            assert f"'{old}'" not in found
        total = {"nvidia.com/gpumem": "'example.com/total-mem'"}.get(old, "")
        assert total in found
        assert "nvidia.com/total-gpumem" not in found
        assert "nvidia.com/priority" not in found  # a message names it, too
        found = names_of(rendered["names of resources"], "ConfigMap")
        assert f"{{name: {new}, ignoredByScheduler: true}}" in found
        assert f"Name: {old}\n" not in found.replace("\\n", "\n")


@cases(
    "example, gone, kept",
    ("few vendors", "huawei.com/Ascend910A", "nvidia.com/gpu"),
    ("few vendors", "kunlunxin.com/xpu", "amd.com/gpu"),
    ("device configuration", "nvidia.com/gpumem", "nvidia.com/gpu"),
    ("device configuration", "hygon.com/dcunum", "nvidia.com/gpu"),
)
def test_resources_that_are_switched_off_are_left_to_others(rendered, example, gone, kept):
    config = parse_own_yaml(
        rendered[example]["ConfigMap/hami-kube-scheduler"]["data"]["config.yaml"]
    )
    names = [resource["name"] for resource in config["extenders"][0]["managedResources"]]
    assert kept in names
    assert gone not in names
    (condition,) = rendered[example]["ValidatingAdmissionPolicy/hami-placement"]["spec"][
        "matchConditions"
    ]
    assert f"'{kept}'" in condition["expression"]
    assert f"'{gone}'" not in condition["expression"]


def container(objects: dict[str, Object], workload: str, place: int = 0) -> Object:
    found: Object = objects[workload]["spec"]["template"]["spec"]["containers"][place]
    return found


@cases(
    "example, workload, place, image",
    ("registry", "Deployment/hami-scheduler", 1, "registry.example.com/mirror/hami:0.1.0"),
    (
        "registry",
        "DaemonSet/hami-monitor",
        0,
        "registry.example.com/mirror/hami-device-plugin:0.1.0",
    ),
    ("own images", "Deployment/hami-scheduler", 1, "r.example.com/hami:1"),
    (
        "own images",
        "Deployment/hami-scheduler",
        0,
        f"registry.k8s.io/kube-scheduler@sha256:{'0' * 64}",
    ),
    ("images as strings", "DaemonSet/hami-device-plugin", 0, "r.example.com/plugin:0.1.0"),
    ("kube-scheduler", "Deployment/hami-scheduler", 0, "registry.k8s.io/kube-scheduler:v1.31.2"),
)
def test_images_are_those_of_the_values(rendered, example, workload, place, image):
    assert container(rendered[example], workload, place)["image"] == image


@pytest.mark.parametrize("take_over", ["never", "always"])
def test_what_pods_reach_has_no_right_of_kube_scheduler_at_any_time(helm, take_over):
    """HAMi's scheduler, which is being replaced, runs with the account that is then that of kube-scheduler alone."""
    both = ["hami-scheduler-extender", "hami-scheduler"]
    held = {
        item["roleRef"]["name"]: [subject["name"] for subject in item["subjects"]]
        for item in helm.template({"takeOver": take_over})
        if item["kind"].endswith("Binding") and "scheduler" in str(item.get("subjects"))
    }
    of_extender = both if take_over == "always" else both[:1]
    of_kube = dict.fromkeys(
        ("system:kube-scheduler", "system:volume-scheduler", "hami-scheduler-kube"), both[1:]
    )
    assert held == {
        **of_kube,
        "hami-scheduler-extender": of_extender,
        "hami-scheduler-self-signed": of_extender,
        "hami-scheduler-preemption": both[:1],
        "hami-scheduler-rejected": both[:1],
    }


def test_the_transition_gives_the_device_plugins_of_hami_their_rights(helm):
    """Ours waits until HAMi's has left a node, and the scheduler counts what HAMi's has written."""
    items = normal(helm.template({"takeOver": "always"}))
    daemon = items["DaemonSet/hami-device-plugin"]["spec"]["updateStrategy"]
    assert daemon == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
    }
    assert "--foreign-reservations" in container(items, "Deployment/hami-scheduler", 1)["command"]
    assert "update" in items["ClusterRole/hami-device-plugin"]["rules"][-1]["verbs"]
    (term,) = items["DaemonSet/hami-monitor"]["spec"]["template"]["spec"]["affinity"][
        "podAntiAffinity"
    ]["requiredDuringSchedulingIgnoredDuringExecution"]
    selector = term["labelSelector"]["matchExpressions"]
    assert {"key": "app.kubernetes.io/managed-by", "operator": "DoesNotExist"} in selector
