"""``hami render-template``: what a node group's template needs."""

from dataclasses import replace

from click.testing import CliRunner

from hami.cli import main
from hami.codec.documents import parse_own_yaml
from hami.codec.keys import NODE_RESIZES
from hami.codec.node_template import NODE_TEMPLATE, parse_node_template
from hami.devices.inventory import DeviceInventory
from hami.model import Node
from hami.plugin.registrar import NodeRegistrar
from hami.vendors.inventory import read_inventory
from testing.builders import NVIDIA
from testing.cards import cards, config
from testing.cases import cases
from testing.fake_cluster import FakeCluster

GROUP = ("--model=NVIDIA A100-SXM4-80GB", "--count=2", "--memory=81920")
SUMS = {
    "nvidia.com/gpumem": "163840",
    "nvidia.com/gpumem-percentage": "200",
    "nvidia.com/gpucores": "200",
    "nvidia.com/total-gpumem": "163840",
    "nvidia.com/total-gpucores": "200",
}


def run(*args, **environ):
    return CliRunner().invoke(main, ["render-template", *args], env={"CONFIG_FILE": None} | environ)


def rendered(*args):
    result = run(*GROUP, *args)
    assert (result.exit_code, result.stderr) == (0, "")
    return parse_own_yaml(result.stdout)


@cases(
    "args, settings",
    ("default", (), {}),
    (
        "scaled",
        ("--device-memory-scaling=1.5", "--device-cores-scaling=2", "--device-split-count=4"),
        {"device_memory_scaling": 1.5, "device_core_scaling": 2.0, "device_split_count": 4},
    ),
)
def test_a_node_is_as_the_device_plugin_registers_it(args, settings):
    made = rendered(*args)
    cluster = FakeCluster(nodes=[Node(name="n1")])
    found = cards("GPU-template-0", "GPU-template-1")
    plugin = config(publish_capacity="requests", **settings)
    inventory = DeviceInventory()
    inventory.update(found)
    NodeRegistrar(cluster, inventory, plugin, NVIDIA, now=lambda: None).register()
    node = cluster.nodes["n1"]
    key = NVIDIA.annotations.register
    assert made["metadata"]["annotations"] == {key: node.annotations[key], NODE_RESIZES: "true"}
    slots = made["status"]["capacity"].pop("nvidia.com/gpu")
    assert int(slots) == 2 * settings.get("device_split_count", 10)
    assert made["status"]["capacity"] == node.capacity
    read = read_inventory(NVIDIA, node)
    assert parse_node_template(made["metadata"]["labels"][NODE_TEMPLATE]) == tuple(
        replace(device, numa=0) for device in read
    )


def test_tags_of_cluster_autoscaler():
    prefix = "k8s.io/cluster-autoscaler/node-template/"
    assert rendered("--output=cluster-autoscaler") == {
        f"{prefix}label/gpu": "on",
        f"{prefix}label/hami.io/node-template": "2x81920.10.100.NVIDIA_A100-SXM4-80GB",
    } | {
        f"{prefix}resources/{name}": amount
        for name, amount in ({"nvidia.com/gpu": "20"} | SUMS).items()
    }


def test_an_overlay_of_karpenter():
    overlay = rendered("--output=karpenter", "--instance-type=p4d.24xlarge", "--name=a100")
    assert overlay["kind"] == "NodeOverlay"
    assert overlay["metadata"] == {"name": "a100"}
    assert overlay["spec"]["capacity"] == {"nvidia.com/gpu": "20"} | SUMS
    assert overlay["spec"]["requirements"][0]["values"] == ["p4d.24xlarge"]


def test_names_and_units_are_those_of_the_device_configuration(tmp_path):
    path = tmp_path / "device-config.yaml"
    path.write_text(
        "nvidia: {resourceCountName: a.b/gpu, resourceMemoryName: a.b/mem, memoryFactor: 1024}"
    )
    assert rendered(f"--config-file={path}")["status"]["capacity"] == {
        "a.b/gpu": "20",
        "a.b/mem": "160",
        "a.b/total-mem": "160",
    }


@cases(
    "args, code, problem",
    ("nothing", (), 1, "error: --model, --count, --memory: missing"),
    (
        "count",
        ("--count=0",),
        2,
        "Invalid value for '--count': '0': expected a whole number, 1 or more",
    ),
    (
        "form",
        ("--output=json",),
        2,
        "Invalid value for '--output': 'json': expected node or cluster-autoscaler or karpenter",
    ),
    ("type", (*GROUP, "--output=karpenter"), 1, "error: --instance-type: missing"),
    ("model", (*GROUP, "--model=A/100"), 1, "error: --model=A/100 --count=2: expected letters"),
    (
        "too-many",
        (*GROUP, "--count=257"),
        1,
        "--count=257: 257 devices, expected at most 256 devices on a node",
    ),
    (
        "file",
        (*GROUP, "--config-file=/nowhere"),
        1,
        "error: --config-file /nowhere: No such file or directory",
    ),
)
def test_errors_name_the_flag(args, code, problem):
    result = run(*args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert problem in result.stderr.splitlines()[-1]
