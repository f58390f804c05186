"""The structure of the package: names are unique, objects are complete once constructed, scheduling keeps no state.

Rules that ruff (ruff.toml) or import-linter (setup.cfg) know are there.
"""

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.files
ROOT = Path(__file__).parent.parent
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "hami").rglob("*.py"))

LIBRARIES = {  # third-party packages that the pure packages may import; the others may import any
    "scheduling": {"numpy", "msgspec"},
    "vendors": set(),
    "codec": {"numpy", "msgspec", "jsonpatch", "yaml"},
    "model": set(),
    "quantity": set(),
    "plurals": set(),
    "errors": set(),
}

VALUES = {"NamedTuple", "Protocol"}  # bases whose instances never change, or that have no instances
MUTABLE = {
    "Counter",
    "OrderedDict",
    "bytearray",
    "cache",
    "cached_property",
    "count",
    "cycle",
    "defaultdict",
    "deque",
    "dict",
    "list",
    "local",
    "lru_cache",
    "set",
    "zeros",
}  # calls that make or keep something that changes
MUTATORS = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "reverse",
    "setdefault",
    "setflags",
    "sort",
    "update",
}
READERS = [
    path
    for path in MODULES
    if path.parts[1] in ("inspect", "dashboard") or str(path) == "hami/scheduler/cluster_metrics.py"
]
READ = {  # of hami.state: views and records, and functions of a pod
    "hami.state.dry_run",
    "hami.state.stranded.Stranded",
    "hami.state.stranded.stranded_in",
    "hami.state.view.View",
    "hami.state.view.Policies",
    "hami.state.bookings.Booking",
    "hami.state.read_pod.PodRecord",
    "hami.state.read_pod.assigned_at",
    "hami.state.read_pod.bound_at",
    "hami.state.held.UNKNOWN_MODEL",
    "hami.state.held.amounts_of",
    "hami.state.held.begin_of",
    "hami.state.pods.FOREIGN_TTL_S",
    "hami.state.compaction.Compaction",
    "hami.state.moves.MoveLimits",
    "hami.state.moves.MovePlan",
    "hami.state.moves.MoveSearch",
    "hami.state.moves.NoMovePlan",
    "hami.state.moves.choose_with_room",
    "hami.state.victims.plan_preemption",
    "hami.state.victims.plan_together",
    "hami.state.victims.pods_together",
    "hami.state.victims.PreemptionRules",
    # a cluster of its own, which a replay fills
    "hami.state.world.World",
    "hami.state.world.chosen_devices",
    "hami.state.world.held_devices",
    "hami.state.world.ranks",
    "hami.state.world.stranded",
    "hami.state.claims.Claimed",
    "hami.state.resize_facts.as_resized",
    "hami.state.resize_facts.plan_resize_in",
    "hami.state.resize_facts.resized_annotations",
}
STORES = {  # readers that fill a store, or take the views of one
    "hami/inspect/cluster.py",
    "hami/dashboard/program.py",
    "hami/dashboard/live.py",
}

READERS_OF_OBJECTS = {  # by which a recorder reads objects as the store does, without one
    "hami.state.read_node.NodeReader",
    "hami.state.read_node.NodeRecord",
    "hami.state.read_node.offers",
    "hami.state.read_pod.read_bookings",
    "hami.state.sighting.Sightings",
}

REASSIGNED = {  # objects of libraries that are configured by assignment
    "hami/kube/api.py": {
        "configuration.connection_pool_maxsize",
        "configuration.host",
        "configuration.refresh_api_key_hook",
        "configuration.socket_options",
    },
    "hami/scheduler/app.py": {"app.wsgi_app"},
    "hami/web/server.py": {"logger.propagate", "gthread.DEFAULT_WORKER_DATA_TIMEOUT"},
    "hami/web/tls.py": {"context.minimum_version", "context.verify_mode"},
}


def package_of(path):
    return path.relative_to("hami").parts[0].removesuffix(".py")


BESIDE = ("tests", "testing", "e2e", "benchmarks", "tools")
SHARED = {"hami", "testing", "tools"}
"""What each of those may import beside itself."""


@functools.cache
def tree_of(path):
    return ast.parse((ROOT / path).read_text())


def imports(path):
    """The full names of what a module imports, at any place in the file."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if package_of(path) in LIBRARIES], ids=str
)
def test_pure_packages_import_their_own_libraries_only(path):
    tops = {name.partition(".")[0] for name in imports(path)} - {"hami"}
    assert tops - sys.stdlib_module_names <= LIBRARIES[package_of(path)]


@pytest.mark.parametrize("folder", BESIDE)
def test_unit_tests_end_to_end_tests_and_benchmarks_share_testing_only(folder):
    """None of them imports another one. A program of another one is called by its name, as a person calls it."""
    found = {
        f"{path}: {name}"
        for path in sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob("*.py"))
        for name in imports(path)
        if name.partition(".")[0] in {"hami", *BESIDE} - SHARED - {folder}
    }
    assert found == set()


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_msgspec_reads_types_before_threads_need_them(path):
    """A module makes its decoders when it is imported, or uses `convert`: two threads that have msgspec read the fields
    of a type at once end the process. Types of its own, such as ``dict[str, Any]``, have no fields."""
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    typed = [
        ast.unparse(keyword.value)
        for node in calls
        if ast.unparse(node.func) == "msgspec.json.decode"
        for keyword in node.keywords
        if keyword.arg == "type"
    ]
    assert all(text.startswith("dict[") for text in typed)


def test_public_names_have_no_word_that_another_one_has_replaced():
    glossary = (ROOT / "docs" / "architecture.md").read_text().partition("## Glossary")[2]
    (sentence,) = re.findall(r"no public name [^.]*", glossary)
    replaced = set(re.findall(r"`(\w+)`", sentence))
    assert replaced >= {"door", "hold"}
    found = []
    for path in MODULES:
        names = [path.stem]
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                names.append(node.name)
        for name in names:
            words = {word.lower().removesuffix("s") for word in re.findall(r"[A-Z]?[a-z]+", name)}
            if not name.startswith("_") and words & replaced:
                found.append(f"{path}: {name}")
    assert found == []


def test_the_name_of_a_public_class_is_used_once():
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


SCHEDULING = [path for path in MODULES if package_of(path) == "scheduling"]


def name_of(node):
    """The last part of a name such as ``a.b.c`` or ``a.b.c(...)``."""
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def is_value(found):
    """Reports whether instances of a class cannot change: it says so where it is declared."""
    declared = [*found.decorator_list, ast.Call(ast.Name("class"), [], found.keywords)]
    frozen = any(
        isinstance(one, ast.Call)
        and any(
            keyword.arg == "frozen" and ast.unparse(keyword.value) == "True"
            for keyword in one.keywords
        )
        for one in declared
    )
    return frozen or bool(VALUES & set(map(name_of, found.bases)))


def changed_state(tree):
    """Yields where a module keeps something that can change: names of modules, attributes, tables, caches."""
    assigned = [node for node in tree.body if isinstance(node, (ast.Assign, ast.AnnAssign))]
    names = {
        target.id
        for node in assigned
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    }
    for node in assigned:
        # a dict is a table of rules: it is searched below whether anything changes it
        if isinstance(node.value, (ast.List, ast.Set, ast.ListComp, ast.SetComp)) or (
            isinstance(node.value, ast.Call) and name_of(node.value) in MUTABLE
        ):
            yield ast.unparse(node)
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef() if not is_value(node):
                yield f"class {node.name}"
            case ast.FunctionDef():
                yield from (
                    f"@{name_of(one)} {node.name}"
                    for one in node.decorator_list
                    if name_of(one) in MUTABLE
                )
            case ast.Global():
                yield ast.unparse(node)
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield ast.unparse(node)
            case ast.Subscript(value=ast.Name(id), ctx=ast.Store() | ast.Del()) if id in names:
                yield ast.unparse(node)
            case ast.AugAssign(target=ast.Name(id)) if id in names:
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(value=ast.Name(id), attr=attr)) if (
                id in names and attr in MUTATORS
            ):
                yield ast.unparse(node)
            case ast.Call(func=ast.Attribute(attr="__setattr__")):
                yield ast.unparse(node)


@pytest.mark.parametrize("path", SCHEDULING, ids=str)
def test_scheduling_keeps_no_state(path):
    """It is functions of values: whoever calls one twice with the same values gets the same answer."""
    assert list(changed_state(tree_of(path))) == []


@pytest.mark.parametrize(
    "code",
    [
        "SEEN = []",
        "SEEN: dict = defaultdict(int)",
        "class A:\n    x = 1",
        "class A(msgspec.Struct):\n    x: int",
        "@dataclass(slots=True)\nclass A:\n    x: int",
        "@functools.lru_cache(8)\ndef f(x): return x",
        "@cache\ndef f(x): return x",
        "N = 0\ndef f():\n    global N\n    N = 1",
        "T = {}\ndef f(k): T[k] = 1",
        "T = {}\ndef f(k): T.setdefault(k, 1)",
        "def f(x): x.y = 1",
        "def f(x): object.__setattr__(x, 'y', 1)",
    ],
)
def test_kept_state_is_found(code):
    assert len(list(changed_state(ast.parse(code)))) == 1


@pytest.mark.parametrize("path", READERS, ids=str)
def test_readers_get_views_only(path):
    """What people ask never changes the store, and never waits for its lock longer than a copy of references takes."""
    allowed = READ | (
        {"hami.state.store.Store", "hami.state.claims.ClaimCache"} if str(path) in STORES else set()
    )
    if str(path) == "hami/inspect/recorder.py":
        allowed |= READERS_OF_OBJECTS
    assert {name for name in imports(path) if name.startswith("hami.state")} - allowed == set()


@pytest.mark.parametrize("path", READERS, ids=str)
def test_readers_leave_the_table_of_a_view_alone(path):
    """It is public for `dry_run`; a booking in it would change all views that share it."""
    names = {node.attr for node in ast.walk(tree_of(path)) if isinstance(node, ast.Attribute)}
    assert names & {"table", "verdicts", "merged", "overlay"} == set()


def constructors(path):
    """The ``__init__`` of each class."""
    for found in ast.walk(tree_of(path)):
        if isinstance(found, ast.ClassDef):
            yield from (
                member
                for member in found.body
                if isinstance(member, ast.FunctionDef) and member.name == "__init__"
            )


def later_names(constructor):
    """The lambdas of a constructor that name what it assigns after them."""
    first = {}
    for node in ast.walk(constructor):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            for target in getattr(node, "targets", None) or [node.target]:
                first.setdefault(ast.unparse(target), node.lineno)
    for function in ast.walk(constructor):
        if isinstance(function, ast.Lambda) and any(
            first.get(ast.unparse(node), 0) > function.lineno for node in ast.walk(function.body)
        ):
            yield ast.unparse(function)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_constructors_name_nothing_that_is_made_later(path):
    """A lambda can: then two objects need each other, and neither is complete without the other."""
    assert [text for constructor in constructors(path) for text in later_names(constructor)] == []


def declared_attributes(path):
    """The attributes that the classes of a module declare or assign in their own methods."""
    for found in ast.walk(tree_of(path)):
        if isinstance(found, ast.ClassDef):
            for node in ast.walk(found):
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    yield node.target.id
                elif is_assigned(node) and ast.unparse(node.value) == "self":
                    yield node.attr


def is_assigned(node):
    return isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)


def foreign_assignments(path):
    """``a.b`` where a module assigns to it, unless ``a`` is ``self`` or a record of a class of the module."""
    own = set(declared_attributes(path))
    for node in ast.walk(tree_of(path)):
        if is_assigned(node) and ast.unparse(node.value) not in ("self", "cls"):
            if not isinstance(node.value, ast.Name) or node.attr not in own:
                yield ast.unparse(node)


@pytest.mark.parametrize(
    "path", [path for path in MODULES if not path.stem.endswith("_pb2")], ids=str
)
def test_no_attribute_of_another_object_is_assigned(path):
    assert set(foreign_assignments(path)) <= REASSIGNED.get(str(path), set())


MAKERS = {
    # as the API server, a recording and a trace say
    "Pod": {"hami/codec/pods.py", "hami/inspect/read_recording.py", "hami/inspect/traces.py"},
    # as the store remembers it, and one that does not exist yet
    "Node": {"hami/codec/objects.py", "hami/state/nodes.py", "hami/plugin/node_template.py"},
}


@pytest.mark.parametrize("name", MAKERS)
def test_no_object_of_the_cluster_is_made_up_to_please_a_function(name):
    makers: set[str] = set()
    for path in MODULES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == name:
                makers.add(str(path))
    assert makers == MAKERS[name]


IMPORT_ALL = """
import importlib, json, sys, threading
seen = set()
WATCHED = ("socket.connect", "subprocess.Popen", "_thread.start_new_thread")
sys.addaudithook(lambda event, args: seen.add(event) if event in WATCHED else None)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps([sorted(seen), len(threading.enumerate())]))
"""


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_docstrings_begin_with_their_subject(path):
    nodes = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
    ]
    begins = [(ast.get_docstring(node) or "").partition("\n")[0] for node in nodes]
    assert [line for line in begins if line.startswith(("What ", "How "))] == []


def test_importing_starts_no_thread_and_opens_no_connection():
    names = [
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in MODULES
        if path.name != "__main__.py"
    ]
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, json.dumps(names)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[], 1]\n", "")


FOLDERS = [
    ROOT / folder
    for folder in ("hami", "tests", "testing", "e2e", "benchmarks", "examples", "manifests", ".ci")
]
FILES = sorted(
    path
    for path in [*ROOT.glob("*"), *(path for folder in FOLDERS for path in folder.rglob("*"))]
    if path.is_file()
    and path.suffix != ".pyc"
    and "results" not in path.parts
    and path.name not in (".git", ".venv")
)  # files of a git worktree, and of tox for editors
LOCAL_NAMES = {  # the brackets keep a pattern from matching itself
    "a path of one machine": r"[/]work/|[/]root/|/tmp/[c]pbuild|/home/[a-z]",
    "a registry or mirror": r"index[-_]url|find[-_]links|GO[P]ROXY=|artifac[t]ory|nexus[.]",
}


@pytest.mark.parametrize("what", LOCAL_NAMES)
def test_no_file_names_what_only_one_machine_has(what):
    pattern = re.compile(LOCAL_NAMES[what])
    found = {
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in FILES
        if (match := pattern.search(path.read_bytes().decode(errors="replace")))
    }
    assert not found
