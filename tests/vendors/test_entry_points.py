"""Vendors of third parties, found as they are when their package is installed."""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from hami.cli import main
from hami.codec.device_config import chart_config
from hami.codec.register import render_devices_json
from hami.errors import HamiError
from hami.model import Node
from hami.state.store import Store
from hami.state.view import Policies
from hami.vendors.entry_points import GROUP, catalog, full_catalog, sections
from testing.builders import NVIDIA, container, device_usage, gpu, node, pod
from testing.cases import cases
from testing.replicas import Clock
from tools.policies import main as policies

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "tests" / "example_vendor"
ENVIRONMENT = {"POD_NAME": None, "POD_NAMESPACE": None, "HAMI_NODELOCK_EXPIRE": None}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Installs modules as packages, as pip does, for one test."""
    before = set(sys.modules)

    def install(package, points, **modules):
        folder = tmp_path / package
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(folder))
        return folder

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def example(install):
    """The example package, under the entry points that its own pyproject.toml names."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    shutil.copy(EXAMPLE / "acme_hami.py", install("acme_hami", project["entry-points"][GROUP]))


def command(*args):
    return CliRunner().invoke(main, args, env=ENVIRONMENT, obj=lambda settings: 0)


def test_without_packages_there_are_none():
    assert sections() == ()
    assert "Acme" not in [vendor.key for vendor in full_catalog(chart_config())]


def test_the_example_is_short():
    lines = [
        line
        for line in (EXAMPLE / "acme_hami.py").read_text().splitlines()
        if line and '"""' not in line
    ]
    assert len(lines) < 30


def test_a_pod_is_scheduled_on_the_example_s_cards(example):
    clock = Clock()
    cache = Store(catalog(chart_config()), Policies(), clock=clock, now=clock.now)
    acme = cache.vendors["Acme"]
    cards = tuple(gpu(f"ACME-{i}", model="Acme One", index=i, memory_mib=8000) for i in range(2))
    cache.nodes.upsert(
        Node(
            name="n1",
            annotations={acme.annotations.register: render_devices_json(cards)},
            allocatable={acme.resources.count: "20"},
        )
    )
    asked = pod(container({"acme.example/card": 1, "acme.example/card-memory": 6000}))
    assert cache.filtering.assume(asked, ["n1"]).node == "n1"
    assert (
        cache.bindings.get(asked.ref.uid).annotations[acme.annotations.allocated]
        == "ACME-1,Acme,6000,0:;"
    )
    assert cache.bindings.get(asked.ref.uid).lock_keys == ("hami.io/mutex.lock",)


def test_its_section_is_read(example, tmp_path):
    config = tmp_path / "devices.yaml"
    config.write_text("acme: {resourceCountName: acme.example/chip}")
    result = command("vendors", f"--device-config-file={config}")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "acme.example/chip" in result.stdout
    assert "hami.io/acme-devices-allocated" in result.stdout


def test_the_manifests_are_generated_by_the_command_and_the_configuration_of_the_page(
    example, tmp_path, monkeypatch
):
    page = (ROOT / "docs" / "add-a-vendor.md").read_text()
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (words,) = re.findall(r"^python -m tools\.policies (.*)$", page, re.MULTILINE)
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    (tmp_path / "device-config.yaml").write_text(config)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(
        policies, [*words.split(), "manifests/base"], catch_exceptions=False
    )
    assert (result.exit_code, result.stderr) == (0, "")
    for name in ("policies", "webhook", "scheduler-config"):
        assert "acme.example/card" in (tmp_path / "manifests" / "base" / f"{name}.yaml").read_text()


def test_a_bad_section_ends_the_start(example, tmp_path):
    config = tmp_path / "devices.yaml"
    config.write_text("acme: {resourceCountName: 3}")
    result = command("scheduler", f"--device-config-file={config}")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: hami.vendors: acme = acme_hami:cards: section acme: resourceCountName: expected a resource name: "
        "'3'\n",
    )


VENDOR = """
from hami.vendors.spec import Annotations, Decision, Resources, Vendor
def make(section, key="Acme", count="acme.example/card", memory="", inventory=lambda vendor, node: None,
         allocated="hami.io/acme-devices-allocated", **annotations):
    return Vendor(key=key, resources=Resources(count=count, memory=memory), decision=Decision(inventory=inventory),
                  annotations=Annotations(allocated=allocated, **annotations))
"""


def changed(**fields):
    """A package whose vendor has these *fields*."""
    return f"{VENDOR}\nmade = lambda section: make(section, **{fields!r})"


FORBIDDEN = "expected a key that users may not write, such as hami.io/acme-devices-allocated"
BROKEN = [  # the module, what is wrong
    (
        "import",
        "import nowhere",
        "cannot be loaded: ModuleNotFoundError: No module named 'nowhere'",
    ),
    ("syntax", "x = (", "cannot be loaded: SyntaxError: '(' was never closed"),
    (
        "no such name",
        "",
        "cannot be loaded: AttributeError: module 'broken' has no attribute 'made'",
    ),
    ("not callable", "made = 3", "cannot be loaded: TypeError: 'int' object is not callable"),
    ("raises", "def made(section): 1 / 0", "cannot be loaded: ZeroDivisionError: division by zero"),
    (
        "returns nothing",
        "def made(section): return None",
        "cannot be loaded: TypeError: 'NoneType' object is not iterable",
    ),
    (
        "returns text",
        "def made(section): return ['Acme']",
        "expected a Vendor or several, not 'Acme'",
    ),
    ("raises later", "def made(section):\n    yield 1 / 0", "cannot be loaded: ZeroDivisionError"),
    ("key", changed(key="a,b"), "vendor a,b: key 'a,b': expected letters, digits, - _ and . only"),
    ("key of another type", changed(key=None), "vendor None: key None: expected letters"),
    ("no count", changed(count=""), "vendor Acme: count '': expected a resource name"),
    (
        "no resource name",
        changed(memory="my memory"),
        "resources 'my memory': expected resource names",
    ),
    ("no annotation", changed(allocated=""), f"vendor Acme: allocated '': {FORBIDDEN}"),
    ("an annotation that users may write", changed(allocated="acme.example/allocated"), FORBIDDEN),
    (
        "another's resource",
        changed(count="nvidia.com/gpu"),
        "vendor NVIDIA: expected a name of its own, this one is Acme's: 'nvidia.com/gpu'",
    ),
    (
        "another's key",
        changed(key="NVIDIA"),
        "vendor: expected a key that no other vendor has: 'NVIDIA'",
    ),
]


@cases("code, problem", *BROKEN)
def test_what_is_wrong_with_a_package_ends_the_start_in_one_line(install, code, problem):
    install("broken", {"acme": "broken:made"}, broken=code)
    result = command("scheduler")
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: hami.vendors: acme = broken:made: ")
    assert problem in line
    with pytest.raises(HamiError):
        catalog(chart_config())


STUMBLES = (
    VENDOR
    + """
def made(section):
    return make(section, register="hami.io/node-acme-register", inventory=lambda vendor, node: 1 / 0,
                read_shares=lambda vendor, pod, containers: containers[99])
"""
)


def test_a_package_that_stumbles_over_a_node_or_a_pod_hides_nobody_else_s(install):
    install("stumbles", {"acme": "stumbles:made"}, stumbles=STUMBLES)
    clock = Clock()
    cache = Store(catalog(chart_config()), Policies(), clock=clock, now=clock.now)
    cache.nodes.upsert(node("n1", gpu(), annotations={"hami.io/node-acme-register": "x"}))
    requested = container({"acme.example/card": 1, NVIDIA.resources.count: 1})
    cache.pods.upsert(
        pod(
            requested,
            node_name="n1",
            annotations={
                "hami.io/vgpu-node": "n1",
                "hami.io/acme-devices-allocated": "ACME-0,Acme,1,1:;",
                NVIDIA.annotations.allocated: "GPU-0,NVIDIA,100,10:;",
            },
        )
    )
    assert cache.nodes.problems() == {
        ("n1", "Acme"): "node n1: vendor Acme cannot read it: 'ZeroDivisionError: division by zero'"
    }
    assert len(cache.pods.unreadable()) == 1
    assert [usage.memory_used_mib for usage in device_usage(cache)["n1"]] == [100]


def test_a_package_may_have_several_vendors_or_none(install):
    code = (
        f"{VENDOR}\ndef two(section): return [make(section), make(section, key='B', count='b.b/b', "
        "allocated='hami.io/b-devices-allocated')]\ndef none(section): return ()"
    )
    install("more", {"two": "more:two", "none": "more:none"}, more=code)
    assert {"Acme", "B"} <= {vendor.key for vendor in catalog(chart_config())}


@cases(
    "first, second, problem",
    (
        "a section of ours",
        "nvidia",
        None,
        "hami.vendors: nvidia = one:make: expected a name that is not a section of HAMi's own",
    ),
    (
        "another's section",
        "acme",
        "acme",
        "hami.vendors: acme = two:make: expected another name than that of one:make",
    ),
)
def test_a_section_has_one_reader(install, first, second, problem):
    install("one", {first: "one:make"}, one=VENDOR)
    if second:
        install("two", {second: "two:make"}, two=VENDOR)
    with pytest.raises(HamiError) as caught:
        sections()
    assert str(caught.value) == problem


def test_a_package_that_is_found_twice_counts_once(install, monkeypatch):
    folder = install("one", {"acme": "one:make"}, one=VENDOR)
    shutil.copytree(folder, folder.parent / "again")
    monkeypatch.syspath_prepend(str(folder.parent / "again"))
    assert sections() == ("acme",)
