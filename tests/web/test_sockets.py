"""The sockets behave as others do, over a pair of them in one process."""

import contextlib
import socket
import threading

import pytest

from hami.web.sockets import GATHERED, PlainSocket


@pytest.fixture
def pair():
    """Ours and the other side's."""
    left, right = socket.socketpair()
    ours = PlainSocket.over(left)
    with contextlib.closing(ours), contextlib.closing(right):
        ours.settimeout(5)
        right.settimeout(5)
        yield ours, right


def is_silent(sock):
    sock.settimeout(0)
    try:
        return not sock.recv(1)
    except BlockingIOError:
        return True
    finally:
        sock.settimeout(5)


def test_the_connection_passes_over():
    left, right = socket.socketpair()
    with contextlib.closing(PlainSocket.over(left)) as ours, right:
        assert left.fileno() == -1
        right.sendall(b"hello")
        assert ours.recv(10) == b"hello"


def test_what_is_sent_is_gathered_until_it_is_flushed(pair):
    ours, other = pair
    ours.sendall(b"head ")
    ours.sendall(b"body")
    assert is_silent(other)
    ours.flush()
    assert other.recv(100) == b"head body"


def test_what_has_arrived_is_known_before_it_is_read(pair):
    ours, other = pair
    assert not ours.has_unread()
    other.sendall(b"x")
    assert ours.has_unread()
    ours.recv(1)
    assert not ours.has_unread()
    other.close()
    assert ours.has_unread()
    ours.close()
    assert not ours.has_unread()


@pytest.mark.parametrize("leave", [
    pytest.param(lambda sock: sock.send(b"!"), id="send"),
    pytest.param(lambda sock: sock.shutdown(socket.SHUT_WR), id="shutdown"),
    pytest.param(lambda sock: sock.sendall(b"!" * GATHERED), id="much"),
])
def test_what_was_gathered_leaves_first(pair, leave):
    ours, other = pair
    ours.sendall(b"before")
    leave(ours)
    assert other.recv(6) == b"before"


def test_before_it_listens_it_speaks(pair):
    ours, other = pair
    ours.sendall(b"question")
    other.sendall(b"answer")
    assert ours.recv(100) == b"answer"
    assert other.recv(100) == b"question"


@pytest.mark.parametrize("timeout, error", [(0.01, TimeoutError), (0.0, BlockingIOError)])
def test_receiving_ends_with_its_timeout(pair, timeout, error):
    ours, _ = pair
    ours.settimeout(timeout)
    assert ours.gettimeout() == timeout
    with pytest.raises(error):
        ours.recv(1)


def test_flushing_ends_with_its_timeout(pair):
    ours, _ = pair
    ours.settimeout(0.01)
    with pytest.raises(TimeoutError):
        ours.sendall(b"x" * 50_000_000)


def test_a_long_answer_arrives_whole(pair):
    ours, other = pair
    received = []
    reader = threading.Thread(target=lambda: received.extend(iter(lambda: other.recv(65536), b"")))
    reader.start()
    ours.sendall(b"x" * 5_000_000)
    ours.shutdown(socket.SHUT_WR)
    reader.join()
    assert sum(map(len, received)) == 5_000_000


def test_it_tells_whether_the_other_side_speaks(pair):
    ours, other = pair
    assert not ours.speaks(0)
    other.sendall(b"x")
    assert ours.speaks(5)


def test_leaving_counts_as_speaking(pair):
    ours, other = pair
    other.close()
    assert ours.speaks(5)
    assert ours.recv(1) == b""
