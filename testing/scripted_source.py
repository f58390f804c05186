"""A source of lists and watches that plays a script, and a sink that remembers what it was told."""

import json
import threading


def obj(name, version, **more):
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)},
        **more,
    }


def page(*objects, version=100, token=""):
    return {
        "metadata": {"resourceVersion": str(version), "continue": token},
        "items": list(objects),
    }


def event(kind, thing):
    return json.dumps({"type": kind, "object": thing}).encode()


def bookmark(version):
    thing = {
        "kind": "Pod",
        "metadata": {"resourceVersion": str(version)},
        "spec": {"containers": None},
    }
    return event("BOOKMARK", thing)


def error(code, message="expired"):
    return event("ERROR", {"kind": "Status", "status": "Failure", "code": code, "message": message})


HANG = object()
"""A watch that says nothing until somebody closes it."""


class ScriptedStream:
    def __init__(self, script):
        self.script, self.closed = script, threading.Event()

    def __enter__(self):
        if isinstance(self.script, Exception):
            raise self.script
        return self

    def __exit__(self, *exc):
        self.close()

    def __iter__(self):
        for step in self.script:
            if step is HANG:
                assert self.closed.wait(20), "nobody closed the hanging watch"
            if self.closed.is_set():
                return
            if isinstance(step, Exception):
                raise step
            if callable(step):
                step()
            else:
                yield step

    def close(self):
        self.closed.set()


class ScriptedSource:
    """Answers each list with the next of *pages* and each watch with the next of *watches*.

    A page that is an exception is raised, one that is callable makes the page. When either runs out, ``on_end`` is
    called (a test stops its reflector there) and the call fails. A check of the version is answered with ``version``.
    """

    def __init__(self, pages, watches=()):
        self.pages, self.watches = list(pages), list(watches)
        self.lists, self.watched, self.waits = [], [], []
        self.on_end = lambda: None
        self.version, self.checks = 10_000, 0

    def request(self, method, path, *, query=None):
        assert method == "GET"
        if query == {"limit": "1"}:
            self.checks += 1
            return json.dumps(page(version=self.version)).encode()
        self.lists.append(dict(query))
        answer = self._next(self.pages)
        answer = answer() if callable(answer) else answer
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, bytes) else json.dumps(answer).encode()

    def stream(self, path, query, *, read_timeout):
        assert read_timeout > 0
        self.watched.append(dict(query))
        return ScriptedStream(self._next(self.watches))

    def _next(self, script):
        if not script:
            self.on_end()
            return ConnectionError("the script is over")
        return script.pop(0)


class RecordingSink:
    """State as it results, by name, and the calls that made it."""

    def __init__(self):
        self.state, self.calls = {}, []

    def upsert(self, item, as_of=None):
        self.calls.append(("upsert", item.name, item.version))
        self.state[item.name] = item.version

    def remove(self, item):
        self.calls.append(("remove", item.name, item.version))
        self.state.pop(item.name, None)

    def prune(self, seen, started):
        self.calls.append(("prune", tuple(sorted(seen)), started))
        self.state = {name: version for name, version in self.state.items() if name in seen}
