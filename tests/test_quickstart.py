"""The commands of the quickstarts run: shell, files, names and flags are right.

Programs that need a cluster are replaced by one that notes what it was called with. `e2e/test_realnode_quickstart.py`
and the nightly workflow carry the pages out.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import namedtuple

import pytest

from hami.cli.kubectl import kubectl_main
from hami.codec.documents import parse_own_yaml
from hami.inspect.manifests import read_manifests
from testing.cases import cases
from testing.eventually import eventually
from testing.processes import is_alive
from testing.quickstart import DOCS, ROOT, carry_out, commands
from testing.yaml_text import read_documents

pytestmark = pytest.mark.files
PAGES = {
    path.stem: path
    for path in (DOCS / "quickstart.md", DOCS / "quickstart-gpu-operator.md", ROOT / "README.md")
}
PROGRAMS = ("docker", "kind", "kubectl", "helm", "hami", "pip", "python3")
NOTE = """#!{python}
import json, os, shutil, sys
program, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open({log!r}, "a") as log:
    print(json.dumps([program, words, sys.stdin.read()]), file=log)
if words[:2] == ["-m", "venv"]:  # of stand-ins, too
    os.makedirs(words[2] + "/bin")
    shutil.copy(sys.argv[0], words[2] + "/bin/pip")
if program == "pip" and "tox" in words:
    shutil.copy(sys.argv[0], os.path.dirname(sys.argv[0]) + "/tox")
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
            (
                repository := folder / "repository"
            ).mkdir()  # without the environments of who runs the tests
            for entry in ROOT.iterdir():
                if not entry.name.startswith("."):
                    (repository / entry.name).symlink_to(entry)
            assert (
                carry_out(
                    PAGES[name],
                    folder=repository,
                    env={**os.environ, "PATH": path},
                    stdin=subprocess.DEVNULL,
                )
                == 0
            )
            calls[name] = [Call(*json.loads(line)) for line in log.read_text().splitlines()]
        return calls[name]

    return type_


def options(calls, *names):
    """Returns the values that follow one of the options *names*."""
    return [
        after for call in calls for word, after in zip(call.words, call.words[1:]) if word in names
    ]


def of_manifests(kind):
    """Returns the objects of a kind in manifests/base, by name."""
    documents = (
        item
        for path in (ROOT / "manifests" / "base").glob("*.yaml")
        for item in read_documents(path.read_text())
    )
    return {
        item["metadata"]["name"]: item for item in documents if item and item.get("kind") == kind
    }


def flat(values, prefix=""):
    """Returns the names of *values* as Helm's --set has them."""
    for key, value in values.items():
        yield prefix + key
        yield from flat(value, f"{prefix}{key}.") if isinstance(value, dict) else ()


def test_every_command_is_known(typed):
    written = {
        page: {
            words[0]
            for line in re.sub(
                r"<<YAML.*?^YAML$|\\\n",
                "",
                "".join(re.findall(r"```console\n(.*?)```", path.read_text(), re.DOTALL)),
                flags=re.DOTALL | re.MULTILINE,
            ).splitlines()
            for part in line.split("&&")
            if (words := shlex.split(part, comments=True))
        }
        for page, path in PAGES.items()
    }
    assert {page: {call.program for call in typed(page)} for page in PAGES} == {
        page: {word.rpartition("/")[2] for word in words} for page, words in written.items()
    }


def test_a_stranger_gets_tox_before_it_is_called(typed):
    """Not with pip of the system: Debian and Ubuntu refuse that (externally-managed-environment)."""
    called = [
        (call.program, call.words)
        for call in typed("README")
        if call.program in ("python3", "pip", "tox")
    ]
    assert called == [
        ("python3", ["-m", "venv", ".venv"]),
        ("pip", ["install", "tox", "tox-uv"]),
        ("tox", ["run", "-e", "demo"]),
        ("tox", ["run"]),
    ]


SECTIONS = ("Try it", "Run the tests")


def test_the_workflow_types_the_commands_of_the_readme():
    nightly = parse_own_yaml((ROOT / ".github" / "workflows" / "nightly.yaml").read_text())
    runs = [step.get("run", "") for step in nightly["jobs"]["newcomer"]["steps"]]
    typed = [run for run in runs if "testing.quickstart README.md" in run]
    assert typed == [
        f"time python3 -m testing.quickstart README.md '{heading}'" for heading in SECTIONS
    ]
    words = [
        word
        for heading in SECTIONS
        for line in commands(ROOT / "README.md", heading)
        for word in line
    ]
    assert "tox" in {word.rpartition("/")[2] for word in words}
    assert "python3-venv" in runs[0], "the package that README names"


@cases(
    "text",
    (".ci/run", (ROOT / ".ci" / "run").read_text()),
    ("tox.ini", (ROOT / "tox.ini").read_text()),
)
def test_the_commands_of_the_readme_are_those_that_are_checked(text):
    """.ci/run calls the test command, and each environment that is named exists."""
    calls = [
        line[line.index(".venv/bin/tox") + 1 :]
        for heading in SECTIONS
        for line in commands(ROOT / "README.md", heading)
        if ".venv/bin/tox" in line
    ]
    assert calls == [["run", "-e", "demo"], ["run"]]
    assert '"$tox" -qq run --result-json' in text or "[testenv:demo]" in text


@cases(
    "page, heading, says",
    ("README.md", "Nowhere", "has no heading 'Nowhere'"),
    ("README.md", "Documentation", "no block of commands"),
)
def test_a_section_that_cannot_be_typed_is_an_error(page, heading, says, capsys, monkeypatch):
    with pytest.raises(ValueError, match=says):
        carry_out(ROOT / page, heading)


@pytest.mark.parametrize("page", PAGES)
def test_the_files_exist(typed, page):
    calls = typed(page)
    charts = [
        word
        for call in calls
        if call.program == "helm"
        for word in call.words
        if word.startswith("charts/")
    ]
    named = [
        name for name in options(calls, "-f", "-k", "--filename", "--values") if name != "-"
    ] + charts
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_the_values_are_those_of_the_chart(typed, page):
    ours = [call for call in typed(page) if call.program == "helm" and "charts/hami" in call.words]
    known = set(flat(parse_own_yaml((ROOT / "charts" / "hami" / "values.yaml").read_text())))
    assert {value.partition("=")[0] for value in options(ours, "--set")} <= known


@pytest.mark.parametrize("page", PAGES)
def test_workloads_and_labels_are_those_of_the_manifests(typed, page):
    kubectl = [call.words for call in typed(page) if call.program == "kubectl"]
    rolled = {words[words.index("status") + 1] for words in kubectl if "rollout" in words}
    known = {
        f"{kind.lower()}/{name}"
        for kind in ("Deployment", "DaemonSet")
        for name in of_manifests(kind)
    }
    assert rolled == (
        {"deployment/hami-scheduler", "daemonset/hami-device-plugin"} if page != "README" else set()
    )
    assert rolled <= known
    (labeled,) = [words[-1] for words in kubectl if words[0] == "label"]
    selector = of_manifests("DaemonSet")["hami-device-plugin"]["spec"]["template"]["spec"][
        "nodeSelector"
    ]
    assert labeled in [f"{key}={value}" for key, value in selector.items()]


def test_the_images_that_are_built_are_those_that_are_loaded_and_installed(typed):
    calls = typed("quickstart")
    built = options([call for call in calls if call.program == "docker"], "-t")
    (loaded,) = [
        call.words[2:] for call in calls if call.program == "kind" and call.words[0] == "load"
    ]
    installed = {
        container["image"]
        for kind in ("Deployment", "DaemonSet")
        for item in of_manifests(kind).values()
        for container in item["spec"]["template"]["spec"]["containers"]
    }
    assert built == loaded
    assert set(built) == {name for name in installed if name.startswith("hami")}
    stages = re.findall(
        r"^FROM .* AS (\S+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE | re.IGNORECASE
    )
    assert set(options(calls, "--target")) <= set(stages)


def test_the_version_of_kube_scheduler_is_that_of_the_manifests():
    (version,) = re.findall(
        r"The overlay names kube-scheduler (v[\d.]+)\.", PAGES["quickstart"].read_text()
    )
    pod = of_manifests("Deployment")["hami-scheduler"]["spec"]["template"]["spec"]
    assert f"registry.k8s.io/kube-scheduler:{version}" in [
        container["image"] for container in pod["containers"]
    ]


def test_the_pods_that_are_created_are_those_that_are_looked_at(typed):
    calls = typed("quickstart")
    (manifest,) = [call.stdin for call in calls if call.stdin]
    sources, others = read_manifests(manifest, "-")
    assert {source.name for source in sources} == {"a", "b"}
    assert not others
    (waited,) = [call.words for call in calls if "wait" in call.words]
    assert {word.removeprefix("pod/") for word in waited if word.startswith("pod/")} == {"a", "b"}
    limits = [source.pod["spec"]["containers"][0]["resources"]["limits"] for source in sources]
    assert "CUDA_DEVICE_MEMORY_LIMIT_0=20000m" in PAGES["quickstart"].read_text()
    assert limits[0]["nvidia.com/gpumem"] == 20_000


def test_our_own_commands_take_the_words(typed):
    calls = [call for page in PAGES for call in typed(page) if call.program == "kubectl"]
    own = [call.words[1:] for call in calls if call.words[0] == "hami"]
    assert [words[0] for words in own] == ["top", "explain"]
    for words in own:
        kubectl_main.all()[words[0]].make_context(words[0], words[1:])


PAGE = """# A page

```console
kind create cluster
echo $$ >pid.new; mv pid.new pid; sleep 1000
```

```console
kind delete cluster   # removes it
```
"""


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name
)
def test_a_page_that_is_ended_while_it_is_typed_is_undone(tmp_path, number):
    (tmp_path / "page.md").write_text(PAGE.replace("pid", str(tmp_path / "pid")))
    (tmp_path / "kind").write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/log\n')
    (tmp_path / "kind").chmod(0o755)
    command = [sys.executable, "-m", "testing.quickstart", str(tmp_path / "page.md")]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    eventually((tmp_path / "pid").exists, "the commands are typed")
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert (tmp_path / "log").read_text().splitlines() == ["create cluster", "delete cluster"]
    eventually(lambda: not is_alive(int((tmp_path / "pid").read_text())), "the shell has ended")
