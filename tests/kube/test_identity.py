"""A process knows the one before it in the same pod, and no other."""

import os
import subprocess
import sys

from hami.kube.identity import has_ended, make_identity
from testing.cases import cases


def former(pod):
    """The identity of a process that has ended."""
    program = f"from hami.kube.identity import make_identity; print(make_identity({pod!r}))"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_identities_are_never_the_same():
    assert make_identity("hami-0") != make_identity("hami-0")


def test_a_process_of_the_same_pod_that_is_gone_has_ended():
    assert has_ended(former("hami_0"), "hami_0")


def test_a_process_that_has_another_s_id_now_has_ended():
    pod, pid, started, chance = make_identity("hami-0").rsplit("_", 3)
    assert has_ended(f"{pod}_{os.getpid()}_{int(started) - 1}_{chance}", "hami-0")


@cases(
    "identity",
    ("it-runs", make_identity("hami-0")),
    ("another-pod", "hami-1_4194304_1_abcdef01"),
    ("upstream's", "hami-0"),
    ("no-process", "hami-0_c0ffee_1_abcdef01"),
    ("nobody", ""),
)
def test_of_all_others_nothing_is_known(identity):
    assert not has_ended(identity, "hami-0")


def test_without_a_pod_s_name_nothing_is_known():
    assert not has_ended(former(""), "")
