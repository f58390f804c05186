"""Each function of NVIDIA's newest headers is hooked, or is said to need no hook, with the reason.

A release of CUDA with new functions fails here until somebody has read what they do.
"""

import sys
from collections import Counter

import pytest

from testing.limiter.builds import SOURCE

sys.path.insert(0, str(SOURCE / "abi"))
sys.path.insert(0, str(SOURCE / "gen"))

import extract  # noqa: E402
import hooks  # noqa: E402
import unhooked  # noqa: E402

from testing.cases import cases

GROUPS = unhooked.read_unhooked()
UNHOOKED = [name for group in GROUPS for name in group.names]
HOOKS = hooks.read_hooks()


def sort(declared, hooked, unhooked_names):
    """Names of *declared* that nobody has sorted, and sorted names that no header declares."""
    known = set(hooked) | set(unhooked_names)
    return sorted(declared - known), sorted(known - declared)


def hooked_names(is_nvml):
    return {hook.symbol for hook in HOOKS if hook.is_hooked and hook.is_nvml == is_nvml}


def names_of(prefix):
    return {name for name in UNHOOKED if name.startswith(prefix)}


def test_each_function_of_cuda_is_hooked_or_has_its_reason(builds):
    assert sort(
        set(extract.prototypes(builds.headers)), hooked_names(is_nvml=False), names_of("cu")
    ) == ([], [])


def test_each_function_of_nvml_is_hooked_or_has_its_reason(wheel):
    include = wheel("nvml-13.5") / "nvidia" / "cu13" / "include"
    assert sort(extract.nvml_functions(include), hooked_names(is_nvml=True), names_of("nvml")) == (
        [],
        [],
    )


COPIES = (
    "cuMemcpy",
    "cuMemset",
    "cuFabricCpyBatchAsync",
    "cuMemBatchDecompressAsync",
    "cuMemPrefetch",
    "cuMemDiscardAndPrefetchBatchAsync",
)
"""Beginnings of the names of functions that are charged where the limits say so."""
WORK = (
    "cuStreamBatchMemOp",
    "cuStreamWaitValue",
    "cuStreamWriteValue",
)
"""Beginnings of the names of functions that let a card work, and are never charged."""
PAGE = (SOURCE.parent / "docs" / "limiter.md").read_text()


@pytest.mark.parametrize("prefix", WORK)
def test_work_that_is_not_limited_is_told(prefix):
    """No such function is hooked; the page that says so names them."""
    assert names_of(prefix)
    assert not [name for name in hooked_names(is_nvml=False) if name.startswith(prefix)]
    assert f"`{prefix}…`" in section()


@pytest.mark.parametrize("prefix", COPIES)
def test_work_that_can_be_charged_is_told(prefix):
    """All such functions are hooked, and charged as copies are."""
    assert not names_of(prefix)
    assert {hook.behavior for hook in HOOKS if hook.symbol.startswith(prefix)} == {"copy"}
    assert f"`{prefix}…`" in section()


def section():
    _, _, rest = PAGE.partition("### Work that is not limited\n")
    return rest.partition("\n### ")[0]


def test_the_number_of_copies_and_fills_is_told():
    copies = [hook for hook in HOOKS if hook.symbol.startswith(("cuMemcpy", "cuMemset"))]
    assert f"fills: {len(copies)} symbols" in PAGE


def test_new_name_and_a_name_that_is_gone_are_told():
    assert sort({"cuA", "cuB"}, {"cuA"}, {"cuC"}) == (["cuB"], ["cuC"])


def test_no_function_is_sorted_twice():
    hooked = [hook.symbol for hook in HOOKS if hook.is_hooked]
    assert [name for name, count in Counter(UNHOOKED + hooked).items() if count > 1] == []


def test_what_the_limiter_calls_and_does_not_hook_has_its_reason_too():
    assert {hook.symbol for hook in HOOKS if not hook.is_hooked} <= set(UNHOOKED)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.names[0])
def test_reason_is_a_sentence(group):
    assert group.reason[0].isupper()
    assert group.reason.endswith(".")


@cases(
    "text",
    ("no reason", "cuA cuB\n"),
    ("no names", "A reason.\n"),
    ("open brace", "A reason.\n    cuA{_v2\n"),
    ("pattern", "A reason.\n    cuA*\n"),
)
def test_what_cannot_be_read_is_refused(tmp_path, text):
    (tmp_path / "unhooked.txt").write_text(text)
    with pytest.raises(ValueError, match=r"unhooked\.txt"):
        unhooked.read_unhooked(tmp_path)
