"""An API server that lists and watches the pods of a node, without a socket."""

import json
import queue

__all__ = ["Server"]


class Server:
    """An API server with one watch. ``pages``: the answers to lists, in order; ``requests``: their queries."""

    def __init__(self, *pages):
        self.pages = list(pages)
        self.requests = []
        self.events = queue.SimpleQueue()

    def request(self, method, path, *, query=None):
        self.requests.append((path, query))
        items, version, *more = self.pages.pop(0)
        return json.dumps(
            {
                "metadata": {"resourceVersion": str(version), "continue": more[0] if more else ""},
                "items": items,
            }
        ).encode()

    def stream(self, path, query, *, read_timeout):
        return Watch(self.events)

    def report(self, kind, pod):
        self.events.put(json.dumps({"type": kind, "object": pod}).encode())


class Watch:
    """The lines of the events."""

    def __init__(self, events):
        self._events = events

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def __iter__(self):
        return iter(self._events.get, None)

    def close(self):
        self._events.put(None)
