"""The manifests have the same resources and defaults as the catalog, and use existing flags."""

import re
import subprocess
from pathlib import Path

import pytest

from hami import __version__
from hami.cli import main
from hami.cli.client import COMMON_OPTIONS
from hami.codec.device_config import chart_config
from hami.codec.documents import parse_own_yaml
from hami.codec.keys import (
    CLAIM_AMOUNTS,
    CLAIM_RESOURCE,
    CORDON,
    GPU_POLICY,
    MAKE_ROOM,
    MANAGED_TAINT,
    NODE_LOCK,
    NODE_POLICY,
    NUMA_BIND,
    PREEMPTIBLE,
    ROOM,
    SCHEDULER_OWNED,
    WEIGHTS,
)
from hami.codec.slices import DRIVER, pool_name, render_slices
from hami.model import MigProfile, Partition
from hami.node.library import install_library
from hami.vendors.catalog import vendors
from testing.builders import gpu
from testing.cases import cases
from testing.yaml_text import read_documents

ROOT = Path(__file__).parent.parent
BASE = ROOT / "manifests" / "base"
DRA = ROOT / "manifests" / "components" / "dra"
ALLOCATE = ROOT / "manifests" / "components" / "dra-allocate"
DASHBOARD = ROOT / "manifests" / "components" / "dashboard"
CONTAINERS = {
    "extender": BASE / "deployment.yaml",
    "device-plugin": BASE / "device-plugin.yaml",
    "monitor": BASE / "monitor.yaml",
    "dashboard": DASHBOARD / "deployment.yaml",
}
RIGHTS = {
    "device-plugin": {"drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"]},
    "monitor": {"drop": ["ALL"], "add": ["KILL"]},
}
TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where clients look for the token of the account of their pod."""
CATALOG = vendors(chart_config(), ascend=True, iluvatar=True)
KEYS = "account-or-key-of-hami"
RESOURCES = {resource for vendor in CATALOG for resource in vendor.resources.names}
# nodes offer these as resources, so kube-scheduler and the kubelet account for them, as in upstream's chart
NATIVE = {
    resource
    for vendor in CATALOG
    if vendor.key in ("MLU", "Mthreads")
    for resource in vendor.resources.names
    if resource != vendor.resources.count
}


def expressions(file, folder=BASE):
    """Returns the expressions in a file, by name or else by place."""
    found = {}
    for item in read_documents((folder / file).read_text()):
        for part in (*item.get("webhooks", ()), item.get("spec", {})):
            for entry in (
                *part.get("matchConditions", ()),
                *part.get("variables", ()),
                *part.get("validations", ()),
            ):
                found[item["metadata"]["name"], entry.get("name", len(found))] = entry["expression"]
    return found


def names_in(expression, of=""):
    """Returns the names in the longest list of an expression, its duplicates included. *of*: the variable that is
    looked for in it."""
    lists = re.findall(rf"{of} in \[(.*?)\]", expression, re.DOTALL)
    return re.findall(r"'([^']+)'", max(lists, key=len))


@pytest.mark.parametrize(
    "place",
    [
        ("webhook.yaml", "hami-webhook", "managed-resource-or-reserved-key"),
        ("policies.yaml", "hami-placement", "requests-devices"),
    ],
    ids=lambda place: place[0],
)
def test_the_conditions_name_every_resource(place):
    file, *name = place
    names = names_in(expressions(file)[tuple(name)], of="r")
    assert set(names) == RESOURCES | {CLAIM_RESOURCE}
    assert len(names) == len(set(names))


def test_an_extender_writes_the_status_of_and_deletes_pods_with_any_resource():
    judged = [
        names_in(expression)
        for (policy, _), expression in expressions("policies.yaml").items()
        if "r in [" in expression and policy != "hami-placement"
    ]
    assert len(judged) == 2
    assert all(set(names) == RESOURCES | {CLAIM_RESOURCE} for names in judged)


@pytest.mark.parametrize(
    "name, label", [("hami-preemptible", PREEMPTIBLE), ("hami-make-room", MAKE_ROOM)]
)
def test_the_label_that_needs_a_right_is_that_which_the_scheduler_reads(name, label):
    """No other pod is looked at."""
    (policy,) = (
        item
        for item in read_documents((BASE / "policies.yaml").read_text())
        if item["metadata"]["name"] == name and item["kind"] == "ValidatingAdmissionPolicy"
    )
    assert policy["spec"]["matchConstraints"]["objectSelector"] == {
        "matchExpressions": [{"key": label, "operator": "Exists"}]
    }
    assert f"'{label}'" in policy["spec"]["matchConditions"][0]["expression"]


def test_class_and_policy_of_claims_name_what_the_device_plugin_publishes():
    profile = MigProfile(
        name="1g.5gb", memory_mib=4864, cores=15, slices=1, placements=(Partition(0),)
    )
    slice, _, parts = render_slices(
        "n1", [gpu(cordoned=True, healthy=False), gpu("GPU-1", mode="mig", mig_profiles=(profile,))]
    )
    (card,), (instance,) = slice["spec"]["devices"], parts["spec"]["devices"]
    classes = read_documents((DRA / "device-class.yaml").read_text())
    assert [each["metadata"]["name"] for each in classes] == [DRIVER, "mig.hami.io"]
    for device_class, device in zip(classes, (card, instance), strict=True):
        kind = device["attributes"]["type"]["string"]
        assert device_class["spec"] == {
            "selectors": [
                {
                    "cel": {
                        "expression": (
                            f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == '{kind}'"
                        )
                    }
                }
            ]
        }
    text = str(expressions("policies.yaml", DRA))
    assert f"'{DRIVER}'" in text
    assert f"'{pool_name('')}' + variables.node" in text
    assert all(taint["key"].startswith("hami.io/") for taint in card["taints"])


def test_kube_scheduler_passes_all_resources_that_nodes_do_not_offer_to_the_extender():
    config = parse_own_yaml((BASE / "scheduler-config.yaml").read_text())
    (extender,) = config["extenders"]
    assert {entry["name"] for entry in extender["managedResources"]} == RESOURCES - NATIVE
    assert all(entry["ignoredByScheduler"] for entry in extender["managedResources"])


def test_with_its_own_claims_the_scheduler_has_a_second_profile_and_nothing_else_is_different():
    base, own = (
        parse_own_yaml((folder / "scheduler-config.yaml").read_text())
        for folder in (BASE, ALLOCATE)
    )
    (profile,) = base["profiles"]
    assert own["profiles"] == [
        profile,
        {
            "schedulerName": f"{profile['schedulerName']}-claims",
            "plugins": {"multiPoint": {"disabled": [{"name": "DynamicResources"}]}},
        },
    ]
    (extender,), (own_extender,) = base["extenders"], own["extenders"]
    assert own_extender["managedResources"] == [
        *extender["managedResources"],
        {"name": CLAIM_RESOURCE, "ignoredByScheduler": True},
    ]
    for config in (base, own):
        del config["profiles"], config["extenders"][0]["managedResources"]
    assert own == base


def test_what_makes_claims_of_the_scheduler_is_named_as_in_the_code():
    text = str(expressions("policies.yaml", ALLOCATE))
    assert all(f"'{name}'" in text for name in (DRIVER, CLAIM_AMOUNTS, MANAGED_TAINT))
    component = parse_own_yaml((ALLOCATE / "kustomization.yaml").read_text())
    flags = {
        operation["value"]
        for patch in component["patches"]
        for operation in parse_own_yaml(patch.get("patch", "[]"))
        if operation["op"] == "add"
    }
    assert flags == {"--dra=allocate", "--claim-allocator=hami"}


def cel_pattern(expression):
    """Returns the pattern that keys are compared with."""
    return re.search(r"k\.matches\(r'(.*?)'\)", expression)[1]


@pytest.mark.parametrize("vendor", list(CATALOG), ids=lambda vendor: vendor.key)
def test_the_policies_protect_all_keys_of_a_vendor(vendor):
    found = expressions("policies.yaml")
    pods, nodes = found["hami-allocations", KEYS], found["hami-registrations", KEYS]
    keys = vendor.annotations
    for key in filter(None, (keys.allocated, keys.to_allocate, *keys.extra_keys)):
        assert key in names_in(pods) or re.search(cel_pattern(pods), key), key
    for key in filter(None, (keys.register, keys.handshake, keys.lock)):
        assert key in names_in(nodes) or key.startswith("hami.io/node-"), key


def test_the_policies_protect_the_keys_of_the_scheduler_and_none_of_users():
    found = expressions("policies.yaml")
    pods, nodes = found["hami-allocations", KEYS], found["hami-registrations", KEYS]
    assert SCHEDULER_OWNED <= set(names_in(pods))
    assert {NODE_LOCK, ROOM} <= set(names_in(nodes))
    chosen = {
        key
        for vendor in CATALOG
        for key in (*vendor.annotations.selectors.names, *vendor.annotations.pod_keys)
    }
    chosen |= {
        NODE_POLICY,
        GPU_POLICY,
        WEIGHTS,
        NUMA_BIND,
        "hami.io/webhook",
        "hami.io/vgpu-devices-allocated-by",
    }
    assert not [key for key in chosen if key in names_in(pods) or re.search(cel_pattern(pods), key)]
    assert CORDON not in names_in(nodes)


@pytest.mark.parametrize("folder", [BASE, DRA, ALLOCATE], ids=lambda folder: folder.name)
def test_every_policy_denies_when_it_fails_and_is_bound(folder):
    items = read_documents((folder / "policies.yaml").read_text())
    policies = {
        item["metadata"]["name"]: item["spec"]
        for item in items
        if item["kind"] == "ValidatingAdmissionPolicy"
    }
    bound = {
        item["spec"]["policyName"]: item["spec"]
        for item in items
        if item["kind"].endswith("Binding")
    }
    assert bound.keys() == policies.keys()
    assert len(items) == 2 * len(policies)
    assert all(
        spec == {"policyName": name, "validationActions": ["Deny"]} for name, spec in bound.items()
    )
    for spec in policies.values():
        assert spec["failurePolicy"] == "Fail"
        assert (
            len(spec["matchConditions"]) == 1
        )  # the API server skips a policy if one of several is false
        assert all(
            check["reason"] == "Forbidden" and check["message"] for check in spec["validations"]
        )


def test_rights_that_policies_ask_for_are_granted_by_a_role():
    folders = [BASE, DRA, ALLOCATE]
    asked = set()
    for expression in (
        text for folder in folders for text in expressions("policies.yaml", folder).values()
    ):
        words = re.sub(r"\s", "", expression)
        asked |= set(
            re.findall(r"resource\('(\w+)'\)(?:\.namespace\([\w.]+\))?\.check\('([\w-]+)'\)", words)
        )
    rules = [
        rule
        for item in shipped(*(folder.relative_to(ROOT / "manifests") for folder in folders))
        for rule in item.get("rules", ())
    ]
    granted = {
        (resource, verb)
        for rule in rules
        if rule["apiGroups"] == ["hami.io"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert asked == granted


def test_both_policies_of_priority_judge_the_same_texts():
    found = [
        re.findall(r"e\.name == '\w+' && !e\.[^\n]*\.matches\('[^']+'\)", expression)
        for folder in (BASE, DRA)
        for expression in expressions("policies.yaml", folder).values()
    ]
    texts = [text for entry in found for text in entry]
    assert len(texts) == 3
    assert len(set(texts)) == 1


def shipped(*folders):
    """Returns the objects in files of the manifests."""
    files = (
        file for folder in folders for file in sorted((ROOT / "manifests" / folder).glob("*.yaml"))
    )
    return [
        item for file in files for item in read_documents(file.read_text()) if "metadata" in item
    ]


def test_the_scheduler_may_change_only_the_objects_that_hold_its_certificates():
    items = shipped("base", "components/self-signed")
    rules = [
        rule for item in items for rule in item.get("rules", ()) if item["kind"].endswith("Role")
    ]
    found = [
        (resource, rule.get("resourceNames"), rule["verbs"])
        for rule in rules
        for resource in rule["resources"]
        if resource in ("secrets", "mutatingwebhookconfigurations")
    ]
    assert sorted(found) == [
        ("mutatingwebhookconfigurations", ["hami-webhook"], ["get", "patch"]),
        ("secrets", ["hami-scheduler-self-signed"], ["get", "patch"]),
        ("secrets", ["hami-scheduler-tls"], ["get"]),
    ]
    assert not [
        rule for rule in rules if "*" in rule["verbs"] + rule["resources"] + rule["apiGroups"]
    ]


def rights(account, *folders):
    """Returns what *account* may do, as (group, resource, name, verb), and the roles that Kubernetes ships for it."""
    items = shipped(*folders)
    bound = {
        (item["roleRef"]["kind"], item["roleRef"]["name"])
        for item in items
        for subject in item.get("subjects", ())
        if subject["name"] == account
    }
    return {
        (group, resource, name, verb)
        for item in items
        if (item["kind"], item["metadata"]["name"]) in bound
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    }, {name for _, name in bound if name.startswith("system:")}


def test_what_other_pods_reach_may_only_delete_pods_and_create_only_bindings_events_and_leases():
    """The policies hold what it may write of pods and nodes to keys of HAMi, and deletions to pods that are evicted."""
    found, of_kubernetes = rights("hami-scheduler-extender", "base", "components/self-signed")
    assert of_kubernetes == set()
    assert {
        (resource, name, verb)
        for _, resource, name, verb in found
        if verb not in ("get", "list", "watch")
    } == {
        ("pods", "", "patch"),
        ("pods", "", "delete"),
        ("pods/status", "", "patch"),
        ("pods/binding", "", "create"),
        ("nodes", "", "patch"),
        ("events", "", "create"),
        ("events", "", "patch"),
        ("leases", "", "create"),
        ("leases", "hami-scheduler-extender", "patch"),
        ("allocations", "", "write"),
        ("registrations", "", "write"),
        ("secrets", "hami-scheduler-self-signed", "patch"),
        ("mutatingwebhookconfigurations", "hami-webhook", "patch"),
    }
    assert {
        (resource, name) for _, resource, name, verb in found if verb in ("get", "list", "watch")
    } == {
        ("pods", ""),
        ("nodes", ""),
        ("resourcequotas", ""),
        ("poddisruptionbudgets", ""),
        ("podgroups", ""),
        ("compositepodgroups", ""),
        ("leases", ""),
        ("leases", "hami-scheduler-extender"),
        ("secrets", "hami-scheduler-self-signed"),
        ("secrets", "hami-scheduler-tls"),
        ("mutatingwebhookconfigurations", "hami-webhook"),
    }


def test_the_scheduler_sees_claims_only_with_the_component():
    found, of_kubernetes = rights("hami-scheduler-extender", "components/dra")
    assert (found, of_kubernetes) == (
        {
            ("resource.k8s.io", resource, "", verb)
            for resource in ("resourceslices", "resourceclaims")
            for verb in ("list", "watch")
        },
        set(),
    )


def test_the_scheduler_may_write_claims_only_where_it_allocates_them():
    found, of_kubernetes = rights("hami-scheduler-extender", "components/dra-allocate")
    assert ({(resource, verb) for _, resource, _, verb in found}, of_kubernetes) == (
        {
            ("resourceclaims", "get"),
            ("resourceclaims", "create"),
            ("resourceclaims/status", "update"),
            ("resourceclaims/binding", "update"),
            ("devicetaints", "tolerate"),
            ("claims", "allocate"),
            ("resourceclaimtemplates", "get"),
        },
        set(),
    )


def test_webhooks_for_claims_see_pods_that_request_nvidia_gpus_by_their_names():
    """Those of labels on pods also see pods that have a claim already, which the other webhook leaves to them. All see
    pods that name templates of claims."""
    operations = parse_own_yaml((ALLOCATE / "webhook.yaml").read_text())
    webhooks = [operation["value"] for operation in operations if operation["op"] == "add"]
    (config,) = (vendor for vendor in vendors(chart_config()) if vendor.key == "NVIDIA")
    names = list(config.resources.names)
    assert {
        webhook["name"]: [
            re.findall(r"'([^']+)'", condition["expression"])
            for condition in webhook["matchConditions"]
        ]
        for webhook in webhooks
    } == {
        f"{kind}.{allocation_mode}.hami.io": [[*names, *more]]
        for kind, more in (("pods", ["hami.io/claim"]), ("namespaces", []))
        for allocation_mode in ("dra", "dra-preferred")
    }


def test_without_the_removal_of_rejected_pods_nothing_is_left_that_it_needs():
    folder = ROOT / "manifests" / "components" / "no-clean-rejected"
    component = parse_own_yaml((folder / "kustomization.yaml").read_text())
    role, deployment, policy = component["patches"]
    shipped_now = {(item["kind"], item["metadata"]["name"]): item for item in shipped("base")}
    targets = [
        shipped_now[each["target"]["kind"], each["target"]["name"]] for each in (role, policy)
    ]
    (rule,) = targets[0]["rules"]
    assert (rule["resources"], rule["verbs"]) == (["pods"], ["delete"])
    assert parse_own_yaml(role["patch"]) == [{"op": "replace", "path": "/rules", "value": []}]
    (variable,) = targets[1]["spec"]["variables"]
    assert variable["name"] == "rejected"
    assert "variables.rejected" in targets[1]["spec"]["validations"][0]["expression"]
    assert parse_own_yaml(policy["patch"])[-1] == {
        "op": "replace",
        "path": "/spec/variables/0/expression",
        "value": "false",
    }
    assert parse_own_yaml(deployment["patch"])[-1]["value"] == "--clean-rejected=none"


def test_without_preemption_no_rule_is_left_that_it_needs():
    """The component empties the role: to leave it out would not take it away from a cluster that has it."""
    component = parse_own_yaml(
        (ROOT / "manifests" / "components" / "no-preemption" / "kustomization.yaml").read_text()
    )
    role, deployment = component["patches"]
    emptied = [
        item
        for item in shipped("base")
        if (item["kind"], item["metadata"]["name"])
        == (role["target"]["kind"], role["target"]["name"])
    ]
    assert [
        {
            (resource, verb)
            for rule in item["rules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for item in emptied
    ] == [
        {
            ("pods", "delete"),
            ("pods/status", "patch"),
            ("poddisruptionbudgets", "list"),
            ("podgroups", "get"),
            ("compositepodgroups", "get"),
        }
    ]
    assert parse_own_yaml(role["patch"]) == [{"op": "replace", "path": "/rules", "value": []}]
    assert parse_own_yaml(deployment["patch"])[-1]["value"] == "--preemption=off"


def test_kube_scheduler_has_its_own_roles_and_no_key_of_hami():
    found, of_kubernetes = rights("hami-scheduler", "base", "components/self-signed")
    assert of_kubernetes == {"system:kube-scheduler", "system:volume-scheduler"}
    lease = "coordination.k8s.io", "leases"
    assert found == {
        (*lease, "", "create"),
        (*lease, "hami-scheduler", "get"),
        (*lease, "hami-scheduler", "update"),
    }


def test_each_program_of_the_scheduler_has_the_token_of_its_own_account_only():
    spec = pod_spec(CONTAINERS["extender"])
    assert (spec["serviceAccountName"], spec["automountServiceAccountToken"]) == (
        "hami-scheduler",
        False,
    )
    tokens = {volume["name"]: volume for volume in spec["volumes"] if "token" in str(volume)}
    mounts = {
        container["name"]: [
            (mount["name"], mount["mountPath"], mount["readOnly"])
            for mount in container["volumeMounts"]
            if mount["name"] in tokens
        ]
        for container in spec["containers"]
    }
    assert mounts == {
        "kube-scheduler": [("kube-scheduler-token", TOKEN, True)],
        "extender": [("extender-token", TOKEN, True)],
    }
    first, *_ = tokens["kube-scheduler-token"]["projected"]["sources"]
    # with 3607, the default, API servers make it valid for a year
    assert first == {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}
    (secret,) = (item for item in shipped("base") if item["kind"] == "Secret")
    assert secret["metadata"]["annotations"] == {
        "kubernetes.io/service-account.name": "hami-scheduler-extender"
    }
    assert secret["type"] == "kubernetes.io/service-account-token"
    assert "data" not in secret
    mounted = tokens["extender-token"]["secret"]
    assert mounted["secretName"] == secret["metadata"]["name"]
    # keys that are named must exist, so the kubelet waits for them
    assert {item["key"] for item in mounted["items"]} == {"token", "ca.crt", "namespace"}
    assert not mounted.get("optional")


def test_the_secret_is_shipped_empty():
    """With a type or data, applying the manifests again would fail, or remove the certificates."""
    (secret,) = (item for item in shipped("components/self-signed") if item["kind"] == "Secret")
    assert secret.keys() == {"apiVersion", "kind", "metadata"}
    flags = (ROOT / "manifests" / "overlays" / "self-signed" / "deployment.yaml").read_text()
    assert f"--self-signed-cert-secret={secret['metadata']['name']}}}" in flags


def pod_spec(file):
    return parse_own_yaml(file.read_text())["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_flags_of_our_containers_exist(name):
    (container,) = (
        item for item in pod_spec(CONTAINERS[name])["containers"] if item["name"] == name
    )
    program, command, *flags = container["command"]
    known = {word for option in main.all()[command].params for word in option.opts}
    assert program == "hami"
    assert {flag.partition("=")[0].replace("_", "-") for flag in flags} <= {
        word.replace("_", "-") for word in known
    }
    assert container["image"].endswith(f":{__version__}")


@pytest.mark.parametrize("file", CONTAINERS.values(), ids=lambda file: file.stem)
def test_containers_are_restricted_and_volumes_are_used(file):
    spec = pod_spec(file)
    containers = spec["containers"] + spec.get("initContainers", [])
    for container in containers:
        confined = container["securityContext"]
        assert (confined["allowPrivilegeEscalation"], confined["readOnlyRootFilesystem"]) == (
            False,
            True,
        )
        assert confined["capabilities"] == RIGHTS.get(container["name"], {"drop": ["ALL"]})
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}
    mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def mebibytes(text):
    return int(text.removesuffix("Mi"))


@pytest.mark.parametrize("file", CONTAINERS.values(), ids=lambda file: file.stem)
def test_memory_is_limited_and_cpu_is_not(file):
    """A container whose memory somebody fills ends alone; with a limit on CPU, the webhook would be slow instead."""
    spec = pod_spec(file)
    for container in spec["containers"] + spec.get("initContainers", []):
        given = container["resources"]
        if container["name"] == "kube-scheduler":
            assert "limits" not in given  # its memory grows with the cluster
        else:
            assert given["limits"].keys() == {"memory"}
            assert mebibytes(given["limits"]["memory"]) >= 4 * mebibytes(
                given["requests"]["memory"]
            )


@cases(
    "name, priority",
    ("extender", "system-cluster-critical"),
    ("device-plugin", "system-node-critical"),
    ("monitor", "system-node-critical"),
)
def test_only_what_belongs_to_a_node_is_critical_for_it(name, priority):
    """The kernel ends the processes of a node-critical pod last, so one that takes too much memory would end others."""
    assert pod_spec(CONTAINERS[name])["priorityClassName"] == priority


def test_no_proxy_is_put_into_the_pod_that_serves_the_verbs_on_loopback():
    template = parse_own_yaml(CONTAINERS["extender"].read_text())["spec"]["template"]
    assert template["metadata"]["labels"]["sidecar.istio.io/inject"] == "false"
    (container,) = (item for item in template["spec"]["containers"] if item["name"] == "extender")
    (extender,) = parse_own_yaml((BASE / "scheduler-config.yaml").read_text())["extenders"]
    assert (
        f"--extender-bind-address={extender['urlPrefix'].removeprefix('http://')}"
        in container["command"]
    )


def test_the_dashboard_reads_and_asks_and_changes_nothing():
    """Its account is its own, and it goes first where a node has too little memory."""
    spec = pod_spec(CONTAINERS["dashboard"])
    assert spec["serviceAccountName"] == "hami-dashboard"
    assert "priorityClassName" not in spec
    (rules,) = [
        item["rules"] for item in shipped("components/dashboard") if item["kind"] == "ClusterRole"
    ]
    assert {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    } == {
        *(
            (resource, verb)
            for resource in ("nodes", "pods", "resourcequotas")
            for verb in ("list", "watch")
        ),
        ("pods", "get"),
        ("tokenreviews", "create"),
        ("subjectaccessreviews", "create"),
    }
    assert not any("resourceNames" in rule or rule["apiGroups"] == ["*"] for rule in rules)


def test_the_dashboard_decides_with_the_flags_of_the_scheduler():
    """What the pages say would help must help."""
    (of_scheduler, of_dashboard) = (
        {
            flag
            for item in pod_spec(CONTAINERS[name])["containers"]
            if item["name"] == name
            for flag in item["command"]
        }
        for name in ("extender", "dashboard")
    )
    own = {flag for flag in of_dashboard if flag.startswith(("--bind", "--cert", "--key"))} | {
        "dashboard"
    }
    assert len(own) == 4
    assert of_dashboard - own <= of_scheduler


def test_commands_in_the_pod_of_the_scheduler_decide_with_its_flags():
    """kubectl exec chooses the container by the annotation."""
    template = parse_own_yaml(CONTAINERS["extender"].read_text())["spec"]["template"]
    chosen = template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"]
    (container,) = [item for item in template["spec"]["containers"] if item["name"] == chosen]
    assert container["command"][:2] == ["hami", "scheduler"]
    options = {option.envvar: option.opts[0] for option in COMMON_OPTIONS if option.envvar}
    variables = {entry["name"]: entry.get("value") for entry in container["env"]}
    flags = {f"{name}={variables[variable]}" for variable, name in options.items()}
    assert len(flags) == 3
    assert flags <= set(container["command"])


def test_metrics_are_for_labeled_namespaces_only():
    """They name the pods, namespaces, devices and quotas of the whole cluster."""
    policies = {
        item["metadata"]["name"]: item["spec"]
        for item in read_documents((BASE / "network-policy.yaml").read_text())
    }
    assert policies.keys() == {"hami-scheduler", "hami-device-plugin", "hami-monitor"}
    labels = {"app.kubernetes.io/name": "hami", "app.kubernetes.io/component": "hami-device-plugin"}
    assert policies["hami-device-plugin"] == {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress"],
        "ingress": [],
    }
    webhook, metrics = policies["hami-scheduler"]["ingress"]
    assert webhook == {"ports": [{"port": "https"}]}
    assert metrics == {
        "ports": [{"port": "metrics"}],
        "from": [{"namespaceSelector": {"matchLabels": {"hami.io/metrics": "allowed"}}}],
    }
    of_dashboard = metrics | {
        "from": [
            {
                "podSelector": {
                    "matchExpressions": [
                        {
                            "key": "app.kubernetes.io/component",
                            "operator": "In",
                            "values": ["hami-dashboard"],
                        }
                    ]
                }
            }
        ]
    }
    assert policies["hami-monitor"]["ingress"] == [metrics, of_dashboard]


def test_the_limiter_of_hami_comes_with_the_checksums_that_the_device_plugin_verifies(tmp_path):
    component = parse_own_yaml(
        (ROOT / "manifests" / "components" / "hami-limiter" / "kustomization.yaml").read_text()
    )
    (patch,) = component["patches"]
    init = parse_own_yaml(patch["patch"])[0]["value"]
    shell, option, script = init["command"]
    (tmp_path / "image").mkdir()
    (tmp_path / "image" / "libvgpu.so.v2.10.0").write_text("library")
    (tmp_path / "limiter").mkdir()
    script = script.replace("/k8s-vgpu/lib/nvidia", f"{tmp_path}/image").replace(
        "/limiter", f"{tmp_path}/limiter"
    )
    subprocess.run([shell, option, script], check=True, timeout=20)
    assert install_library(tmp_path / "limiter", tmp_path / "host") == [
        "libvgpu.so",
        "ld.so.preload",
    ]


@pytest.mark.parametrize("name", ["device-plugin", "monitor"])
def test_host_paths_are_mounted_at_the_same_path(name):
    spec = pod_spec(CONTAINERS[name])
    on_host = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in spec["volumes"]
        if "hostPath" in volume
    }
    (program,) = spec["containers"]
    seen = {
        mount["name"]: mount["mountPath"]
        for mount in program["volumeMounts"]
        if mount["name"] in on_host
    }
    hook = next(
        flag.partition("=")[2] for flag in program["command"] if flag.startswith("--hook-path=")
    )
    assert seen == on_host
    assert f"{hook}/vgpu" in on_host.values()


def test_probes_use_ports_and_paths_that_are_served():
    """The flags open the port, and the path is served there."""
    for name, file in CONTAINERS.items():
        (container,) = (item for item in pod_spec(file)["containers"] if item["name"] == name)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        opened = {
            int(flag.rpartition(":")[2])
            for flag in container["command"]
            if re.search(r"bind.*:\d+$", flag)
        }
        asked = {
            container[probe]["httpGet"]["port"]
            for probe in ("startupProbe", "livenessProbe", "readinessProbe")
            if probe in container
        }
        assert asked, name
        assert {ports[port] for port in asked} <= opened, name
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz", name


def test_only_the_monitor_sees_the_processes_of_the_host():
    """In return it has no other right: no capability, and an account that can list and watch pods."""
    assert [name for name, file in CONTAINERS.items() if pod_spec(file).get("hostPID")] == [
        "monitor"
    ]
    (rules,) = [
        item["rules"]
        for item in read_documents((BASE / "monitor-rbac.yaml").read_text())
        if item["kind"] == "ClusterRole"
    ]
    assert rules == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]}]
    assert pod_spec(CONTAINERS["monitor"])["serviceAccountName"] == "hami-monitor"


IMAGES = [
    (file.relative_to(ROOT), image)
    for file in sorted((ROOT / "manifests").rglob("*.yaml"))
    for image in re.findall(r"\bimage: *[\"']?([^\s\"',}]+)", file.read_text())
]


@pytest.mark.parametrize(("file", "image"), IMAGES, ids=str)
def test_no_image_has_a_tag_that_moves(file, image):
    """Also in patches, which are text. docs/installation.md says how to pin digests, and e2e/test_manifests.py builds
    that."""
    assert re.fullmatch(
        r"[\w./-]+(:v?\d+\.\d+\.\d+|(:v?\d+\.\d+\.\d+)?@sha256:[0-9a-f]{64})", image
    ), file


def test_all_images_were_found():
    assert {image.partition(":")[0] for _, image in IMAGES} == {
        "hami",
        "hami-device-plugin",
        "registry.k8s.io/kube-scheduler",
        "docker.io/projecthami/hami",
    }


def test_the_documented_kustomizations_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    commands = re.findall(r"kubectl apply -k (\S+)", "".join(page.read_text() for page in pages))
    assert set(commands) > {"."}  # that of the reader, which e2e/test_manifests.py builds
    assert all(
        (ROOT / folder / "kustomization.yaml").is_file() for folder in commands if folder != "."
    )


def test_kubectl_of_kubernetes_1_31_builds_what_later_ones_build():
    """Its kustomize takes a pattern in a replacement for a name, and leaves that of a policy in a binding as it is."""
    kustomizations = [
        parse_own_yaml(file.read_text())
        for file in (ROOT / "manifests").rglob("*.yaml")
        if file.name in ("kustomization.yaml", "replacements.yaml")
    ]
    replacements = [
        entry
        for part in kustomizations
        for entry in (part if isinstance(part, list) else part.get("replacements", ()))
    ]
    names = {
        part["name"]
        for entry in replacements
        for part in (
            *([entry["source"]] if "source" in entry else ()),
            *(target["select"] for target in entry.get("targets", ())),
        )
        if "name" in part
    }
    assert len(names) > 5
    assert not [name for name in names if re.fullmatch(r"[a-z0-9-]+", name) is None]
    (suffixed,) = [part for part in kustomizations if "nameSuffix" in part]
    (file,) = suffixed["configurations"]
    (reference,) = parse_own_yaml(
        (ROOT / "manifests/overlays/upgrade-from-hami" / file).read_text()
    )["nameReference"]
    assert (reference["kind"], reference["fieldSpecs"][0]["path"]) == (
        "ValidatingAdmissionPolicy",
        "spec/policyName",
    )


def test_the_webhook_sees_ephemeral_containers_whatever_labels_a_pod_has():
    webhooks = {
        one["name"]: one for one in parse_own_yaml((BASE / "webhook.yaml").read_text())["webhooks"]
    }
    pods, ephemeral = webhooks["vgpu.hami.io"], webhooks["ephemeralcontainers.hami.io"]
    assert ephemeral["clientConfig"] == pods["clientConfig"]
    assert not {"objectSelector", "matchConditions"} & ephemeral.keys()
    (rule,) = ephemeral["rules"]
    assert (rule["operations"], rule["resources"]) == (["UPDATE"], ["pods/ephemeralcontainers"])
