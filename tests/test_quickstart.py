"""The commands of the quickstarts run: shell, files, names and flags are right.

Programs that need a cluster are replaced by one that notes what it was called with. `e2e/test_realnode_quickstart.py`
and the nightly workflow carry the pages out.
"""

import json
import os
import re
import shlex
import subprocess
import sys
from collections import namedtuple

import pytest
import yaml

from e2e.quickstart import DOCS, ROOT, carry_out
from hami.cli import main
from hami.inspect.manifests import read_manifests

pytestmark = pytest.mark.files
PAGES = {path.stem: path for path in (DOCS / "quickstart.md", DOCS / "quickstart-gpu-operator.md", ROOT / "README.md")}
PROGRAMS = ("docker", "kind", "kubectl", "helm", "hami", "pip", "tox")
NOTE = """#!{python}
import json, sys
with open({log!r}, "a") as log:
    print(json.dumps([sys.argv[0].rpartition("/")[2], sys.argv[1:], sys.stdin.read()]), file=log)
"""
Call = namedtuple("Call", "program words stdin")


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """Returns the calls of a page."""
    calls = {}

    def type_(name):
        if name not in calls:
            folder = tmp_path_factory.mktemp(name)
            log = folder / "log"
            for program in PROGRAMS:
                (folder / program).write_text(NOTE.format(python=sys.executable, log=str(log)))
                (folder / program).chmod(0o755)
            path = f"{folder}:{os.environ['PATH']}"
            assert carry_out(PAGES[name], env={**os.environ, "PATH": path}, stdin=subprocess.DEVNULL) == 0
            calls[name] = [Call(*json.loads(line)) for line in log.read_text().splitlines()]
        return calls[name]
    return type_


def options(calls, *names):
    """Returns the values that follow one of the options *names*."""
    return [after for call in calls for word, after in zip(call.words, call.words[1:]) if word in names]


def of_manifests(kind):
    """Returns the objects of a kind in manifests/base, by name."""
    documents = (item for path in (ROOT / "manifests" / "base").glob("*.yaml")
                 for item in yaml.safe_load_all(path.read_text()))
    return {item["metadata"]["name"]: item for item in documents if item and item.get("kind") == kind}


def flat(values, prefix=""):
    """Returns the names of *values* as Helm's --set has them."""
    for key, value in values.items():
        yield prefix + key
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else ()


def test_every_command_is_known(typed):
    written = {page: {words[0] for line in re.sub(r"<<YAML.*?^YAML$|\\\n", "", "".join(re.findall(
        r"```console\n(.*?)```", path.read_text(), re.DOTALL)), flags=re.DOTALL | re.MULTILINE).splitlines()
        for part in line.split("&&") if (words := shlex.split(part, comments=True))} for page, path in PAGES.items()}
    assert {page: {call.program for call in typed(page)} for page in PAGES} == written


@pytest.mark.parametrize("page", PAGES)
def test_the_files_exist(typed, page):
    calls = typed(page)
    charts = [word for call in calls if call.program == "helm" for word in call.words if word.startswith("charts/")]
    named = [name for name in options(calls, "-f", "-k", "--filename", "--values") if name != "-"] + charts
    assert named and [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_values_are_those_of_the_chart(typed, page):
    ours = [call for call in typed(page) if call.program == "helm" and "charts/hami" in call.words]
    known = set(flat(yaml.safe_load((ROOT / "charts" / "hami" / "values.yaml").read_text())))
    assert {value.partition("=")[0] for value in options(ours, "--set")} <= known


@pytest.mark.parametrize("page", PAGES)
def test_workloads_and_labels_are_those_of_the_manifests(typed, page):
    kubectl = [call.words for call in typed(page) if call.program == "kubectl"]
    rolled = {words[words.index("status") + 1] for words in kubectl if "rollout" in words}
    known = {f"{kind.lower()}/{name}" for kind in ("Deployment", "DaemonSet") for name in of_manifests(kind)}
    assert rolled == ({"deployment/hami-scheduler", "daemonset/hami-device-plugin"} if page != "README" else set())
    assert rolled <= known
    (labeled,) = [words[-1] for words in kubectl if words[0] == "label"]
    selector = of_manifests("DaemonSet")["hami-device-plugin"]["spec"]["template"]["spec"]["nodeSelector"]
    assert labeled in [f"{key}={value}" for key, value in selector.items()]


def test_the_images_that_are_built_are_those_that_are_loaded_and_installed(typed):
    calls = typed("quickstart")
    built = options([call for call in calls if call.program == "docker"], "-t")
    (loaded,) = [call.words[2:] for call in calls if call.program == "kind" and call.words[0] == "load"]
    installed = {container["image"] for kind in ("Deployment", "DaemonSet") for item in of_manifests(kind).values()
                 for container in item["spec"]["template"]["spec"]["containers"]}
    assert built == loaded and set(built) == {name for name in installed if name.startswith("hami")}
    stages = re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE | re.IGNORECASE)
    assert set(options(calls, "--target")) <= set(stages)


def test_the_version_of_kube_scheduler_is_that_of_the_manifests():
    (version,) = re.findall(r"The overlay names kube-scheduler (v[\d.]+)\.", PAGES["quickstart"].read_text())
    pod = of_manifests("Deployment")["hami-scheduler"]["spec"]["template"]["spec"]
    assert f"registry.k8s.io/kube-scheduler:{version}" in [container["image"] for container in pod["containers"]]


def test_the_pods_that_are_created_are_those_that_are_looked_at(typed):
    calls = typed("quickstart")
    (manifest,) = [call.stdin for call in calls if call.stdin]
    sources, others = read_manifests(manifest, "-")
    assert {source.name for source in sources} == {"a", "b"} and not others
    (waited,) = [call.words for call in calls if "wait" in call.words]
    assert {word.removeprefix("pod/") for word in waited if word.startswith("pod/")} == {"a", "b"}
    limits = [source.pod["spec"]["containers"][0]["resources"]["limits"] for source in sources]
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=20000m" in PAGES["quickstart"].read_text()
    assert limits[0]["nvidia.com/gpumem"] == 20_000


def test_our_own_commands_take_the_words(typed):
    own = [call.words for page in PAGES for call in typed(page) if call.program == "hami"]
    assert [words[0] for words in own] == ["top", "explain"]
    for words in own:
        main.all()[words[0]].make_context(words[0], words[1:])
