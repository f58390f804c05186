"""The documents name existing files, tests, anchors, commands, flags, events, metrics and keys, and they name all
events, reasons, metrics and alerts. The expected names come from the code.
"""

import ast
import configparser
import re
import shlex
import tomllib
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import yaml

from hami import __version__
from hami.cli import main
from hami.cli.kubectl import kubectl_main
from hami.codec.device_config import DeviceConfigFile, chart_config, parse_device_config
from hami.codec.documents import parse_own_yaml
from hami.codec.pods import convert_pod
from hami.inspect.manifests import KINDS, read_manifests
from hami.inspect.vendors import entries
from hami.model import Reason
from hami.plugin.settings import read_plugin_settings
from hami.vendors.catalog import vendors
from hami.vendors.vocabulary import counted_names
from testing.cases import cases
from testing.yaml_text import read_documents
from tests.test_monitoring import GROUPS, SCRAPED
from tools.diagrams import DiagramsMissing, unpacked
from tools.site import copy_pages, nav_pages

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent
PAGES = (
    "README.md",
    "SECURITY.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SUPPORT.md",
    "MAINTAINERS.md",
    "GOVERNANCE.md",
    "ROADMAP.md",
    "ADOPTERS.md",
    "examples/README.md",
)
DOCS = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").glob("*.md"))]
CODE = [ast.parse(path.read_text()) for path in sorted((ROOT / "hami").rglob("*.py"))]
WALL = re.findall(r'"([^"\n]+)"', (ROOT / "libvgpu" / "wall" / "memory_wall.c").read_text())
"""Texts of hami-memory-wall."""
TESTS = "".join(
    path.read_text()
    for folder in ("tests", "e2e", "benchmarks")
    for path in sorted((ROOT / folder).rglob("test_*.py"))
)
SETUP = configparser.ConfigParser()
SETUP.read(ROOT / "setup.cfg")
LAYERS = [
    re.findall(r"\w+", line)
    for line in SETUP["importlinter:contract:layers"]["layers"].strip().splitlines()
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
KEY = re.compile(r"(?:[a-z0-9-]+\.)+(?:io|com|ai)/[\w.‹›…*-]+")
FOREIGN = re.compile(r"(?:[\w.-]+\.)?kubernetes\.io/|acme\.|docker\.io/|registry\.")
HISTOGRAM = re.compile(r"_(?:bucket|count|sum)$")
PROGRAM = "hami"

of_each = pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))


@cache
def read(path):
    return path.read_text()


def spans(text):
    """Returns texts in back-ticks outside of fenced blocks, without the escapes of tables."""
    return [span.replace("\\|", "|") for span in re.findall(r"`([^`\n]+)`", FENCE.sub("", text))]


# -- files, tests, links


@of_each
def test_named_files_and_tests_exist(path):
    named = spans(read(path))
    files = [
        name
        for name in named
        if re.fullmatch(
            r"(?:tests|testing|e2e|hami|monitoring|dashboards|manifests|docs|benchmarks)/[\w./-]+",
            name,
        )
    ]
    files += [
        f"hami/{name}"
        for name in named
        if re.fullmatch(rf"(?:{'|'.join(sum(LAYERS, []))})/\w+\.py", name)
    ]
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [
        name for name in named if re.fullmatch(r"test_\w+", name) and f"def {name}(" not in TESTS
    ] == []


def anchors(text):
    """Returns the anchors of the headings of a page, as GitHub generates them."""
    found = {}
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE):
        words = "".join(
            sign
            for sign in heading.lower()
            if sign in " -_" or unicodedata.category(sign)[0] in "LN"
        )
        slug = words.replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {
        slug if not number else f"{slug}-{number}"
        for slug, count in found.items()
        for number in range(count + 1)
    }


@of_each
def test_links_are_valid(path):
    links = [
        link.partition("#") for link in LINK.findall(FENCE.sub("", read(path))) if "://" not in link
    ]
    pages = [(path.parent / page if page else path, anchor) for page, _, anchor in links]
    assert [page for page, _ in pages if not page.exists()] == []
    assert [
        (page.name, anchor)
        for page, anchor in pages
        if anchor and anchor not in anchors(read(page))
    ] == []


@of_each
def test_the_readme_links_to_every_page(path):
    """The README links to every page."""
    assert path == ROOT / "README.md" or str(path.relative_to(ROOT)) in LINK.findall(
        read(ROOT / "README.md")
    )


def test_the_table_of_packages_matches_the_code():
    rows = re.findall(
        r"^\| ((?:`\w+`(?:, )?)+) \|", read(ROOT / "docs" / "architecture.md"), re.MULTILINE
    )
    assert [re.findall(r"`(\w+)`", row) for row in rows] == LAYERS


# -- commands and flags


def lines_of(path):
    """Returns the command lines of a page: in blocks, without comments, and in back-ticks."""
    blocks = "\n".join(
        body for kind, body in FENCE.findall(read(path)) if kind in ("console", "bash", "sh")
    )
    return [*blocks.replace("\\\n", " ").splitlines(), *spans(read(path))]


def flags_of(command):
    return {
        option.replace("_", "-")
        for parameter in command.params
        for option in (*parameter.opts, "--help", "-h")
    }


FLAGS = set().union(*map(flags_of, main.all().values()), {"--version"})
FLAGS |= {text for text in WALL if re.fullmatch("--[a-z-]+", text)}


def failures(page):
    """The first cells of the rows of a page's tables of failures, and the others."""
    text = read(ROOT / "docs" / page).partition("## Health checks")[0]
    cells = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "]
    heads = ("failure", "cause", "attack", "statement")
    return {first: rest for first, *rest in cells if first not in heads}


def test_each_failure_has_its_tests():
    """That named tests exist is tested above."""
    tested = failures("tested-failures.md")
    assert failures("failures.md").keys() - tested.keys() == set()
    assert [text for (text, *_) in tested.values() if not re.search("`test_|untested", text)] == []


@of_each
def test_flags_of_our_commands_exist(path):
    calls = []
    for line in lines_of(path):
        for start, program in ((f"{PROGRAM} ", main), (f"kubectl {PROGRAM} ", kubectl_main)):
            if line.startswith(start):
                words = shlex.split(line.removeprefix(start), comments=True)
                calls.append((program, words))
    for program, words in calls:
        assert words, words
        assert words[0] in program.all(), words
        given = {
            word.partition("=")[0].replace("_", "-") for word in words[1:] if word.startswith("-")
        }
        assert given <= flags_of(program.all()[words[0]]), words


@of_each
def test_flags_without_a_command_are_ours(path):
    """A flag in back-ticks is ours; flags of other programs follow the name of the program."""
    named = [
        re.split(r"[=\s]", span)[0].replace("_", "-")
        for span in spans(read(path))
        if span.startswith("--")
    ]
    assert set(named) <= FLAGS


@of_each
def test_modules_and_tox_environments_exist(path):
    lines = lines_of(path)
    modules = [
        found[1].replace(".", "/")
        for line in lines
        if (found := re.match(r"python -m ([\w.]+)", line))
    ]
    assert [
        name
        for name in modules
        if name != "pytest"
        and not (ROOT / f"{name}.py").exists()
        and not (ROOT / name / "__main__.py").exists()
    ] == []
    tox = (ROOT / "tox.ini").read_text()
    known = set(re.findall(r"^\[testenv:(\w+)\]", tox, re.MULTILINE)) | set(
        re.search(r"^env_list = (.*)$", tox, re.MULTILINE)[1].split(", ")
    )
    used = [
        name
        for line in lines
        for found in re.findall(r"\btox run -e ([\w,]+)", line)
        for name in found.split(",")
    ]
    assert [name for name in used if name not in known] == []


# -- events, reasons, alerts


def event_reasons():
    """Yields the reasons of all events that the code records, in its calls or by a table."""
    for tree in CODE:
        for table in (
            node.value
            for node in tree.body
            if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "_EVENTS"
        ):
            yield from (
                node.value
                for node in ast.walk(table)
                if isinstance(node, ast.Constant)
                and re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", node.value)
            )
        constants = {
            target.id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            name = (
                getattr(node.func, "attr", getattr(node.func, "id", ""))
                if isinstance(node, ast.Call)
                else ""
            )
            if name in ("record", "warn", "_tell", "_warn", "Move"):
                words = [
                    constants.get(one.id)
                    if isinstance(one, ast.Name)
                    else getattr(one, "value", None)
                    for one in node.args
                ]
                yield from (
                    word
                    for word in words
                    if isinstance(word, str) and re.fullmatch(r"[A-Z][a-z]+[A-Z]\w+", word)
                )


EVENTS = set(event_reasons())
REASONS = {reason.value for reason in Reason}
CLASSES = {node.name for tree in CODE for node in tree.body if isinstance(node, ast.ClassDef)}
ALERTS = {rule["alert"] for group in GROUPS for rule in group["rules"] if "alert" in rule}
KUBERNETES = {
    "FailedScheduling",
    "GenericWorkload",
    "UnexpectedAdmissionError",
    "CreateContainerConfigError",
    "CreateContainerError",
    "PreStartContainer",
    "ResourceQuota",
    "ServiceMonitor",
    "DaemonSet",
    "ValidatingAdmissionPolicy",
    "ScheduleAnyway",
    "SchedulingGated",
    "ServiceAccountTokenPodNodeInfo",
    "DisruptionTarget",
    "PreemptionByScheduler",
    "FailedCreate",
    "FailedPrepareDynamicResources",
    "FailedResourceClaimCreation",
}
"""Words of Kubernetes and its operators that stand between back-ticks."""


def test_the_events_are_found():
    assert {
        "FilteringFailed",
        "AllocationExpired",
        "NotAdmitted",
        "AllocationFailed",
        "InventoryUnreadable",
        "AsymmetricGPUP2PLink",
        "ResizePending",
        "ResizeRefused",
    } <= EVENTS


@pytest.mark.parametrize(
    "path", [path for path in DOCS if path.name != "configuration.md"], ids=lambda path: path.name
)
def test_names_are_events_reasons_alerts_or_classes(path):
    words = {
        word
        for span in spans(read(path))
        for word in re.findall(r"(?:^|\s)((?:[A-Z][a-z]+){2,})$", span)
    }
    backends = {entry.vendor.key for entry in entries(chart_config())}
    assert words - EVENTS - REASONS - ALERTS - KUBERNETES - CLASSES - backends == set()


@cases("words", ("events", EVENTS), ("reasons", REASONS))
def test_each_is_described(words):
    assert words - set(spans(read(ROOT / "docs" / "events.md"))) == set()


def test_alerts_has_a_heading_for_each():
    """In the order of the rules, each with the severity, why, check and fix."""
    sections = re.split(r"^## `(\w+)`$", read(ROOT / "docs" / "alerts.md"), flags=re.MULTILINE)[1:]
    rules = [rule for group in GROUPS for rule in group["rules"] if "alert" in rule]
    assert sections[::2] == [rule["alert"] for rule in rules]
    for rule, body in zip(rules, sections[1::2], strict=True):
        assert body.strip().startswith(rule["labels"]["severity"].capitalize())
        assert [word for word in ("**Why:**", "**Check:**", "**Fix:**") if word not in body] == []


@pytest.mark.parametrize("name", sorted(ALERTS))
def test_a_runbook_leads_to_a_heading(name):
    """The chart makes its address of the name. A file of rules cannot know where the page is."""
    (rule,) = [rule for group in GROUPS for rule in group["rules"] if rule.get("alert") == name]
    assert "runbook_url" not in rule["annotations"]
    assert name.lower() in anchors(read(ROOT / "docs" / "alerts.md"))


def test_troubleshooting_says_for_each_symptom_what_why_check_and_fix():
    sections = re.split(r"^## .*$", read(ROOT / "docs" / "troubleshooting.md"), flags=re.MULTILINE)[
        1:
    ]
    assert len(sections) > 10
    for body in sections:
        assert re.findall(r"^\*\*([\w ]+):\*\*", body, re.MULTILINE) == [
            "You see",
            "Why",
            "Check",
            "Fix",
        ], body


# -- the site


class Lenient(yaml.SafeLoader):
    """Reads mkdocs.yml, in which tags name functions."""


Lenient.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
NAV = {
    group: list(nav_pages(pages))
    for part in yaml.load((ROOT / "mkdocs.yml").read_text(), Lenient)["nav"]
    for group, pages in part.items()
}
USERS = [ROOT / page for group in ("Start", "Use", "Operate") for page in NAV[group]]


def test_each_page_is_once_in_the_navigation():
    assert list(NAV) == ["Start", "Use", "Operate", "Extend", "Reference", "Internals"]
    assert sorted(ROOT / page for pages in NAV.values() for page in pages) == sorted(
        [*DOCS, ROOT / "charts" / "hami" / "README.md"]
    )


@pytest.mark.parametrize("path", USERS, ids=lambda path: path.name)
def test_pages_for_users_name_no_tests_and_no_sources(path):
    """Files that users apply or read are named: manifests, examples, rules, dashboards."""
    text = read(path)
    assert (
        re.findall(
            r"\btest_\w+|\b(?:tests|testing|e2e|benchmarks)/[\w/.-]+|\bhami/\w+/[\w/]+\.py|\blibvgpu/\w+",
            text,
        )
        == []
    )


def test_the_site_has_each_page_and_what_it_links_to(tmp_path):
    pages = sum(NAV.values(), [])
    copy_pages(pages, tmp_path)
    missing = {
        (page, target)
        for page in map(tmp_path.joinpath, pages)
        for target in LINK.findall(page.read_text())
        if "://" not in target and not (page.parent / target.partition("#")[0]).exists()
    }
    assert missing == set()
    assert (tmp_path / "docs" / "images" / "pages" / "cards-1440.png").exists()
    assert (tmp_path / "examples" / "pod.yaml").exists()
    assert "](../tests/example_vendor)" not in (tmp_path / "docs" / "add-a-vendor.md").read_text()


@of_each
def test_blocks_in_lists_are_indented_for_the_site_too(path):
    """By four columns: with two, the list ends there on the site."""
    assert re.findall(r"^(?: {1,3}| {5,})```.*$", read(path), re.MULTILINE) == []


def test_a_release_in_the_changelog_is_what_an_operator_reads():
    """Each change is in git's history."""
    releases = read(ROOT / "CHANGELOG.md").split("\n## [")[1:]
    assert max(release.count("\n") for release in releases) < 150


def test_the_readme_is_one_screen():
    assert len(read(ROOT / "README.md").splitlines()) <= 80


# -- messages

PROGRAMS = (
    "docker ",
    "git ",
    "go ",
    "hami ",
    "helm ",
    "kubectl ",
    "pip ",
    "python ",
    "tox ",
    "uv ",
)
OF_OTHERS = {"No such option", "failed calling webhook"}
"""What click says, and the API server."""


@cache
def messages():
    """Returns all texts in the code, one a line, with … for values."""
    told = [*literals(), *WALL]
    for node in (
        node for tree in CODE for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)
    ):
        told.append(
            "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
        )
    return "\n".join(told)


@of_each
def test_quoted_messages_exist(path):
    """A quoted message has two words or more; … stands for any text."""
    quoted = {
        span
        for span in spans(read(path))
        if re.fullmatch(r"[A-Za-z…][\w…]*(?: [\w'’…,-]+)+", span)
        and not span.startswith(PROGRAMS)
        and span not in OF_OTHERS
    }
    assert [
        text
        for text in quoted
        if not re.search(".*".join(map(re.escape, text.split("…"))), messages())
    ] == []


@of_each
def test_named_variables_exist(path):
    """Includes variables of the end-to-end tests; ‹i› and * stand for the rest of a name."""
    named = {
        span
        for span in spans(read(path))
        if re.fullmatch(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+(?:‹i›|\*)?", span)
    }
    theirs = "".join(
        file.read_text() for folder in ("testing", "e2e") for file in (ROOT / folder).glob("*.py")
    )
    assert [name for name in named if name.rstrip("‹i›*") not in messages() + theirs] == []


# -- metrics


def served():
    """Returns the names of all metrics with their labels; a histogram counts once."""
    found = {}
    for name, labels in SCRAPED.items():
        if name.endswith("_created"):
            continue
        if HISTOGRAM.search(name) and (base := HISTOGRAM.sub("", name)) + "_bucket" in SCRAPED:
            name = base
        found[name] = labels - {"zone", "le"}
    return {name: labels for name, labels in found.items() if not name.startswith("process_")}


@of_each
def test_named_metrics_are_served(path):
    named = [span for span in spans(read(path)) if re.fullmatch(r"hami_[\w*]+", span)]
    assert [
        name
        for name in named
        if not any(re.fullmatch(name.replace("*", ".*"), one) for one in served())
    ] == []


def test_the_table_of_metrics_is_complete():
    rows = re.findall(
        r"^\| `((?:hami|container_gpu)_\w+)` \|([^|]*)\|",
        read(ROOT / "docs" / "metrics.md"),
        re.MULTILINE,
    )
    assert {name: set(labels.replace(",", " ").split()) for name, labels in rows} == served()


# -- annotations, labels and resources


def literals():
    """Returns all text constants in the code."""
    return {
        node.value
        for tree in CODE
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


@cache
def keys():
    """Returns all names with a domain, in the code, the manifests and the catalog."""
    catalog = [entry.vendor for entry in entries(chart_config())]
    listed = {
        name
        for vendor in catalog
        for name in (
            *vendor.resources.names,
            vendor.annotations.register,
            vendor.annotations.handshake,
            vendor.annotations.to_allocate,
            vendor.annotations.allocated,
            vendor.annotations.lock,
            *vendor.annotations.selectors.names,
            *vendor.annotations.node_keys,
            *vendor.annotations.pod_keys,
        )
        if name
    }
    listed |= {
        key
        for vendor in vendors(chart_config(), ascend=True)
        for key in vendor.annotations.extra_keys
    }
    manifests = "\n".join(path.read_text() for path in sorted((ROOT / "manifests").rglob("*.yaml")))
    return frozenset(
        {text for text in literals() if KEY.fullmatch(text)} | listed | set(KEY.findall(manifests))
    )


@of_each
def test_named_keys_exist(path):
    """‹vendor› and similar stand for a part of a name. Keys of Kubernetes, images and examples are ignored."""
    named = {
        key
        for span in spans(read(path))
        for key in KEY.findall(span.partition("=")[0])
        if "://" not in span and FOREIGN.match(key) is None
    }
    known = keys()
    wrong = [
        key
        for key in sorted(named)
        if key.removeprefix("limits.").removeprefix("requests.") not in known
        and not any(re.fullmatch(re.sub(r"‹[^›]*›|…", ".+", re.escape(key)), one) for one in known)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "vendor", list(vendors(chart_config(), ascend=True)), ids=lambda vendor: vendor.key
)
def test_the_protocol_names_the_annotations_for_agents_of_vendors(vendor):
    named = set(spans(read(ROOT / "docs" / "protocol.md")))
    assert [
        key
        for key in vendor.annotations.extra_keys
        if key.replace(f"/{vendor.key}", "/‹chip›") not in named
    ] == []


def test_shown_quotas_are_enforced():
    """HAMi enforces devices, memory and cores, Kubernetes the rest."""
    blocks = [body for _, body in FENCE.findall(read(ROOT / "docs" / "usage.md"))]
    (quota,) = [parse_own_yaml(body) for body in blocks if "ResourceQuota" in body]
    counted = {
        f"limits.{name}"
        for entry in entries(chart_config())
        for name in counted_names(entry.vendor.resources)
    }
    assert all(name in counted or name.startswith("requests.") for name in quota["spec"]["hard"])


SHOWN = [
    pytest.param(body, id=f"{path.stem} {number}")
    for path in DOCS
    for number, (kind, body) in enumerate(FENCE.findall(read(path)))
    if kind in ("yaml", "json")
]


@pytest.mark.parametrize("body", SHOWN)
def test_a_program_takes_what_a_page_shows_it(tmp_path, body):
    """Device configurations, settings of nodes, and manifests of pods; other documents can be parsed."""
    documents = [document for document in read_documents(body) if isinstance(document, dict)]
    for document in documents:
        if document.keys() <= {*DeviceConfigFile.__struct_fields__, "acme"}:
            config = parse_device_config(body, "device-config.yaml", known=["acme"])
            assert config.notes == ()
        for node in document.get("nodeconfig", ()):
            (tmp_path / "config.json").write_text(body)
            read_plugin_settings(
                {"node": node["name"], "node_config_file": str(tmp_path / "config.json")}, {}
            )
        if document.get("kind") in KINDS:
            sources, _ = read_manifests(yaml.safe_dump(document), "page")
            assert [convert_pod(source.pod) for source in sources]


def test_the_shown_configuration_is_valid(tmp_path):
    blocks = FENCE.findall(read(ROOT / "docs" / "mig.md"))
    (tmp_path / "config.json").write_text(next(body for kind, body in blocks if kind == "json"))
    settings = read_plugin_settings(
        {
            "node": "gpu-3",
            "device_config_file": str(ROOT / "manifests" / "base" / "device-config.yaml"),
            "node_config_file": str(tmp_path / "config.json"),
        },
        {},
    )
    assert settings.operating_mode == "mig"
    assert settings.nvidia.mig_profile_allowlist
    made = parse_own_yaml((ROOT / "manifests" / "base" / "kustomization.yaml").read_text())[
        "configMapGenerator"
    ]
    (ours,) = [
        parse_own_yaml(body)
        for _, body in FENCE.findall(read(ROOT / "docs" / "installation.md"))
        if "configMapGenerator" in body
    ]
    assert {
        (one["name"], one["namespace"], *one["files"]) for one in ours["configMapGenerator"]
    } <= {
        (one["name"], one["namespace"], *(file.partition("=")[0] for file in one["files"]))
        for one in made
    }


# -- package indexes


FROM_INDEX = re.compile(
    r"""\b(?:pip3?|pipx|uv)\b[^\n`]*?\binstall\b[^\n`]*?\s['"]?hami(?:\[[\w,]*\])?(?:[=<>~!][^\s`]*)?"""
    r"""['"]?(?=[\s`.,:;)]|$)"""
    r"""|\buvx\s+hami\b|\bdependencies\s*=\s*\[[^\]]*['"]hami(?:\[[\w,]*\])?\s*(?:[=<>~!;][^'"]*)?['"]""",
    re.MULTILINE,
)
"""Installs what an index has by the name of this project, which is somebody else's."""
FOLDERS = (
    "docs",
    "examples",
    "charts",
    "manifests",
    "monitoring",
    "hami",
    "libvgpu",
    "testing",
    "e2e",
    "benchmarks",
    "tests",
    "tools",
)


@cases(
    "text, found",
    ("`pip install {}` installs", True),
    ("pip install {}", True),
    ("pip3 install -U '{}[node]>=0.1'", True),
    ("python -m pip install {}[node]", True),
    ("pipx install {}.", True),
    ("uv pip install {}==0.1.0", True),
    ("uv tool install {}", True),
    ("uvx {} top", True),
    ('dependencies = ["{}"]', True),
    ('dependencies = [\n  "a", "{}>=0.1",\n]', True),
    ('dependencies = ["{} @ file:///wheels/{}-0.1.0.whl"]', False),
    ("`pip install .` installs `{}`", False),
    ("pip install '.[node]'", False),
    ("pip install acme-{}", False),
    ("helm install {} charts/{}", False),
    ("pip --python=/opt/{}/bin/python3 install /src", False),
)
def test_installations_from_an_index_are_recognized(text, found):
    assert bool(FROM_INDEX.search(text.format(PROGRAM, PROGRAM))) is found


def test_no_text_installs_this_project_from_an_index():
    files = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    files += [*ROOT.glob("*"), *ROOT.glob(".github/**/*"), *ROOT.glob(".ci/*")]
    texts = {
        path: path.read_text(errors="replace")
        for path in files
        if path.is_file() and "__pycache__" not in path.parts and path.stat().st_size < 2**20
    }
    assert len(texts) > 400
    assert {
        str(path.relative_to(ROOT)): found[0]
        for path, text in texts.items()
        if (found := FROM_INDEX.search(text))
    } == {}


def test_the_example_of_a_vendor_is_that_of_the_page():
    (page,) = [
        body
        for kind, body in FENCE.findall(read(ROOT / "docs" / "add-a-vendor.md"))
        if kind == "toml"
    ]
    example = tomllib.loads(read(ROOT / "tests" / "example_vendor" / "pyproject.toml"))
    assert tomllib.loads(page)["project"] == example["project"]
    assert example["project"]["dependencies"] == [
        f"hami @ file:///wheels/hami-{__version__}-py3-none-any.whl"
    ]


def test_another_package_than_the_pinned_one_draws_no_diagrams(tmp_path):
    package = tmp_path / "mermaid.tgz"
    package.write_bytes(b"another")
    with pytest.raises(DiagramsMissing, match="SHA-512"):
        unpacked(package)
