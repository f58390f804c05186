"""Reading a collection in pages."""

import json
import threading

import pytest

from hami.errors import ClusterError
from hami.kube.pages import read_pages
from testing.scripted_source import obj, page


def body(*objects, token=""):
    return json.dumps(page(*objects, token=token)).encode()


class Server:
    """Answers the first page, and the second once it may."""

    def __init__(self):
        self.answers = threading.Event()
        self.asked = threading.Event()
        self.threads = []
        self.waited = []

    def request(self, method, path, *, query=None):
        self.threads.append(threading.current_thread())
        if "continue" not in query:
            return body(obj("a", 1), token="t")
        self.asked.set()
        self.waited.append(self.answers.wait(20))
        return body(obj("b", 2))


def test_who_stops_reading_does_not_wait_for_the_page_ahead():
    """Such as a user with Ctrl-C, or a reflector that stops."""
    server = Server()
    pages = read_pages(server.request, "pods", "/api/v1/pods", {})
    next(pages)
    assert server.asked.wait(20)
    pages.close()
    assert server.waited == []
    assert all(thread.daemon for thread in server.threads), "nor does the end of the process"
    server.answers.set()


def test_an_error_of_the_page_ahead_is_the_readers():
    def request(method, path, *, query=None):
        if "continue" in query:
            raise ClusterError("no answer")
        return body(obj("a", 1), token="t")

    pages = read_pages(request, "pods", "/api/v1/pods", {})
    assert len(next(pages).items) == 1
    with pytest.raises(ClusterError, match="no answer"):
        next(pages)
