"""What is used of gunicorn beside its documentation: few names, which its next release may change."""

import ast
import inspect
from pathlib import Path

from gunicorn.workers import base, gthread

from hami.web import server

HAMI = Path(__file__).parent.parent.parent / "hami"
# overridden by our worker: the first two as gunicorn's page on custom workers has it, a docstring invites the third
DOCUMENTED = {"__init__", "notify", "get_thread_pool"}


def test_at_most_three_undocumented_names_are_used():
    assert len(server.UNDOCUMENTED) <= 3


def test_one_module_imports_gunicorn_and_only_what_is_documented_or_listed():
    imported = {
        (path.relative_to(HAMI).as_posix(), f"{node.module}.{alias.name}")
        for path in HAMI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gunicorn")
        for alias in node.names
    }
    assert imported == {
        ("web/server.py", "gunicorn.app.base.BaseApplication"),
        ("web/server.py", "gunicorn.workers.gthread"),
    }
    assert "import gunicorn" not in "".join(path.read_text() for path in HAMI.rglob("*.py"))


def test_what_our_worker_overrides_is_documented_or_listed():
    overridden = {
        name
        for name, member in vars(server._Worker).items()
        if callable(member) and hasattr(gthread.ThreadWorker, name)
    }
    listed = {name.rpartition(".")[2] for name in server.UNDOCUMENTED}
    assert overridden - DOCUMENTED - listed == set()


def test_the_names_mean_what_we_believe():
    """Beside `tests/web/test_server.py`, which shows that they do what we want."""
    handle = gthread.ThreadWorker.handle
    assert list(inspect.signature(handle).parameters) == ["self", "conn"]
    assert "DEFAULT_WORKER_DATA_TIMEOUT" in handle.__code__.co_names
    assert gthread.DEFAULT_WORKER_DATA_TIMEOUT > 0
    assert "sock" in inspect.signature(gthread.TConn).parameters
    assert "sock" in handle.__code__.co_names
    assert list(inspect.signature(base.Worker).parameters)[:4] == ["age", "ppid", "sockets", "app"]
    assert callable(base.Worker.notify)
    assert "Override this method" in inspect.getdoc(gthread.ThreadWorker.get_thread_pool)
