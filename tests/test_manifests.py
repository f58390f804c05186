"""The manifests have the same resources and defaults as the catalog, and use existing flags."""

import re
from pathlib import Path

import pytest
import yaml

from hami import __version__
from hami.cli import main
from hami.codec.device_config import chart_config
from hami.codec.keys import SCHEDULER_OWNED
from hami.vendors.catalog import vendors

ROOT = Path(__file__).parent.parent
BASE = ROOT / "manifests" / "base"
CONTAINERS = {"extender": BASE / "deployment.yaml", "device-plugin": BASE / "device-plugin.yaml"}
RIGHTS = {"device-plugin": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}}
CATALOG = vendors(chart_config(), ascend=True, iluvatar=True)
RESOURCES = {resource for vendor in CATALOG for resource in vendor.resources}
# nodes offer these as resources, so kube-scheduler and the kubelet account for them, as in upstream's chart
NATIVE = {resource for vendor in CATALOG if vendor.key in ("MLU", "Mthreads") for resource in vendor.resources
          if resource != vendor.count}


@pytest.fixture
def expression():
    (webhook,) = yaml.safe_load((BASE / "webhook.yaml").read_text())["webhooks"]
    (condition,) = webhook["matchConditions"]
    return condition["expression"]


def test_the_webhook_receives_every_resource(expression):
    resources, annotations, labels = (set(re.findall(r"'([^']+)'", listed))
                                      for listed in re.findall(r" in \[(.*?)\]", expression, re.DOTALL))
    assert resources == RESOURCES
    assert annotations == labels == SCHEDULER_OWNED


def test_kube_scheduler_passes_all_resources_that_nodes_do_not_offer_to_the_extender():
    config = yaml.safe_load((BASE / "scheduler-config.yaml").read_text())
    (extender,) = config["extenders"]
    assert {entry["name"] for entry in extender["managedResources"]} == RESOURCES - NATIVE
    assert all(entry["ignoredByScheduler"] for entry in extender["managedResources"])


def pod_spec(file):
    return yaml.safe_load(file.read_text())["spec"]["template"]["spec"]


@pytest.mark.parametrize("name", CONTAINERS)
def test_the_flags_of_our_containers_exist(name):
    (container,) = (item for item in pod_spec(CONTAINERS[name])["containers"] if item["name"] == name)
    program, command, *flags = container["command"]
    known = {word for option in main.commands[command].params for word in option.opts}
    assert program == "hami"
    assert {flag.partition("=")[0].replace("_", "-") for flag in flags} <= {word.replace("_", "-") for word in known}
    assert container["image"].endswith(f":{__version__}")


@pytest.mark.parametrize("file", CONTAINERS.values(), ids=lambda file: file.stem)
def test_containers_are_restricted_and_volumes_are_used(file):
    spec = pod_spec(file)
    containers = spec["containers"] + spec.get("initContainers", [])
    for container in containers:
        confined = container["securityContext"]
        assert (confined["allowPrivilegeEscalation"], confined["readOnlyRootFilesystem"]) == (False, True)
        assert confined["capabilities"] == RIGHTS.get(container["name"], {"drop": ["ALL"]})
        assert "limits" not in container["resources"] and set(container["resources"]["requests"]) == {"cpu", "memory"}
    mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in spec["volumes"]}


def test_host_paths_are_mounted_at_the_same_path():
    spec = pod_spec(BASE / "device-plugin.yaml")
    on_host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    (plugin,) = spec["containers"]
    seen = {mount["name"]: mount["mountPath"] for mount in plugin["volumeMounts"] if mount["name"] in on_host}
    hook = next(flag.partition("=")[2] for flag in plugin["command"] if flag.startswith("--hook-path="))
    assert seen == on_host
    assert f"{hook}/vgpu" in on_host.values()


def test_probes_use_ports_and_paths_that_are_served():
    """The flags open the port, and the path is served there."""
    for name, file in CONTAINERS.items():
        (container,) = (item for item in pod_spec(file)["containers"] if item["name"] == name)
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        opened = {int(flag.rpartition(":")[2]) for flag in container["command"] if re.search(r"bind.*:\d+$", flag)}
        asked = {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
                 if probe in container}
        assert asked and {ports[port] for port in asked} <= opened, name


def test_the_rules_of_the_operator_match_the_shipped_ones():
    rule = yaml.safe_load((ROOT / "manifests" / "components" / "prometheus" / "rules.yaml").read_text())
    assert rule["spec"]["groups"] == yaml.safe_load((ROOT / "monitoring" / "alerts.yaml").read_text())["groups"]


def test_the_documented_kustomizations_exist():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    commands = re.findall(r"kubectl apply -k (\S+)", "".join(page.read_text() for page in pages))
    assert set(commands) > {"."}  # that of the reader, which e2e/test_manifests.py builds
    assert all((ROOT / folder / "kustomization.yaml").is_file() for folder in commands if folder != ".")
