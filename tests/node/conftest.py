"""What tests of the files of a node share."""

import ctypes

import pytest

PR_SET_SECUREBITS, SECBIT_NOROOT = 28, 1


@pytest.fixture
def shipped_capabilities():
    """None, as far as files go: root is refused what its owner does not allow."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert (
        libc.prctl(PR_SET_SECUREBITS, SECBIT_NOROOT, 0, 0, 0) == 0
    )  # nor when it starts a program
    header, held = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    none = (ctypes.c_uint32 * 6)(0, *held[1:3], 0, *held[4:])
    assert libc.capset(header, none) == 0
    yield
    assert libc.capset(header, held) == 0
    assert libc.prctl(PR_SET_SECUREBITS, 0, 0, 0, 0) == 0
