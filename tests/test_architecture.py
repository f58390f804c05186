"""The house holds itself up: rooms import downwards, each knows only what it needs, and importing does nothing."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULES = sorted(path.relative_to(ROOT) for path in (ROOT / "hami").rglob("*.py"))

LEVEL = {  # a package imports from those with higher numbers only
    "__init__": 0, "cli": 1, "scheduler": 2, "plugin": 2, "monitor": 2, "inspect": 2, "dra": 2, "web": 3,
    "certificates": 4, "node": 5, "cache": 5, "kube": 6, "devices": 6, "runtime": 7, "scheduling": 8, "vendors": 9,
    "codec": 10, "model": 11, "quantity": 11, "errors": 12,
}
LIBRARIES = {  # third-party packages that the pure rooms may use; the others may use any
    "scheduling": {"numpy"}, "vendors": set(), "codec": {"numpy", "msgspec", "jsonpatch", "yaml"}, "model": set(),
    "quantity": set(), "errors": set(),
}
IMPURE = {"asyncio", "http", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "signal",
          "socket",
          "ssl", "subprocess", "tempfile", "threading", "time", "urllib"}


def room_of(path):
    return path.relative_to("hami").parts[0].removesuffix(".py")


def imports(path):
    """The full names of what a module imports, wherever that stands in the file."""
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the room they come from"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def targets(path):
    """The rooms of the house that a module imports from."""
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "hami" and (room := rest.partition(".")[0]) in LEVEL:
            yield room


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_room_has_its_floor(path):
    assert room_of(path) in LEVEL


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_point_down(path):
    room = room_of(path)
    wrong = {target for target in targets(path) if target != room and LEVEL[target] <= LEVEL[room]}
    assert not wrong


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_only_the_two_top_floors_set_up_logs(path):
    assert "logs" not in targets(path) or LEVEL[room_of(path)] <= 2


@pytest.mark.parametrize("path", [path for path in MODULES if room_of(path) in LIBRARIES], ids=str)
def test_pure_rooms_use_no_library_but_their_own_and_do_no_input_or_output(path):
    tops = {name.partition(".")[0] for name in imports(path)} - {"hami"}
    foreign = {top for top in tops if top not in sys.stdlib_module_names}
    assert foreign <= LIBRARIES[room_of(path)]
    assert not tops & IMPURE


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_only_kube_imports_the_client(path):
    tops = {name.partition(".")[0] for name in imports(path)}
    assert "kubernetes" not in tops or room_of(path) == "kube"
    assert "pytest_kind" not in tops, "its licence (GPL) does not let the package lean on it"


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_every_module_says_what_it_is_for(path):
    tree = ast.parse((ROOT / path).read_text())
    assert ast.get_docstring(tree)
    for name in exported(tree):
        found = next((node for node in tree.body if getattr(node, "name", None) == name), None)
        assert found is None or ast.get_docstring(found), f"{name} has no docstring"


def exported(tree):
    """The names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            return ast.literal_eval(node.value)
    return []


IMPORT_ALL = """
import importlib, json, sys, threading
seen = set()
WATCHED = ("socket.connect", "subprocess.Popen", "_thread.start_new_thread")
sys.addaudithook(lambda event, args: seen.add(event) if event in WATCHED else None)
for name in json.loads(sys.argv[1]):
    importlib.import_module(name)
print(json.dumps([sorted(seen), len(threading.enumerate())]))
"""


def test_importing_starts_no_thread_and_opens_no_connection():
    names = [".".join(path.with_suffix("").parts).removesuffix(".__init__") for path in MODULES
             if path.name != "__main__.py"]
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, json.dumps(names)], capture_output=True, text=True,
                          cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[[], 1]\n", "")


FOLDERS = [ROOT / folder for folder in ("hami", "tests", "e2e", "benchmarks", "manifests", ".ci")]
FILES = sorted(path for path in [*ROOT.glob("*"), *(path for folder in FOLDERS for path in folder.rglob("*"))]
               if path.is_file() and path.name != ".git" and path.suffix != ".pyc" and "results" not in path.parts)
SECRETS = {  # a pattern may not match itself, hence the brackets
    "a path of one machine": r"[/]work/|[/]root/|/tmp/[c]pbuild|/home/[a-z]",
    "a registry or mirror": r"index[-_]url|find[-_]links|GO[P]ROXY=|artifac[t]ory|nexus[.]",
}


@pytest.mark.parametrize("what", SECRETS)
def test_no_file_names_what_only_one_machine_has(what):
    pattern = re.compile(SECRETS[what])
    found = {f"{path.relative_to(ROOT)}: {match[0]}" for path in FILES
             if (match := pattern.search(path.read_bytes().decode(errors="replace")))}
    assert not found
