"""The vocabulary: one term for each key and name that means something, and what admission makes of their texts."""

from collections import Counter

import pytest

from hami.codec.device_config import chart_config
from hami.errors import PodRefused
from hami.vendors.admission import admit_pod
from hami.vendors.draft import PodDraft
from hami.vendors.entry_points import full_catalog
from hami.vendors.terms import Author, Place
from hami.vendors.vocabulary import Vocabulary
from testing.cases import cases

CATALOG = full_catalog(chart_config())
VOCABULARY = Vocabulary(CATALOG)
GPU = {"nvidia.com/gpu": "1"}
WORDS = {
    "hami.io/node-scheduler-policy": ("Spread", "spread"),
    "hami.io/gpu-scheduler-policy": ("Binpack, NUMA", "binpack,numa"),
    "hami.io/device-scoring-weights": ("Slot=1,core=1,memory=3", "slot=1,core=1,memory=3"),
    "nvidia.com/numa-bind": ("True", "true"),
    "nvidia.com/vgpu-mode": ("MIG", "mig"),
    "hami.io/overwrite-env": ("FALSE", "false"),
}


def draft_of(annotations, limits=None):
    """A pod with one container, in admission."""
    container = {"name": "c", "resources": {"limits": GPU if limits is None else limits}}
    return PodDraft({"metadata": {"annotations": annotations}, "spec": {"containers": [container]}})


def admitted(annotations, limits=None):
    """The annotations of the pod after admission."""
    draft = draft_of(annotations, limits)
    admit_pod(VOCABULARY, draft)
    return draft.render()["metadata"]["annotations"]


@pytest.mark.parametrize("key", WORDS)
def test_letter_case_is_forgiven_by_writing_the_word(key):
    text, canonical = WORDS[key]
    assert admitted({key: text}) == {key: canonical}


@pytest.mark.parametrize("key", VOCABULARY.forms_of("") | VOCABULARY.forms_of("NVIDIA"))
@pytest.mark.parametrize("text", ["", " ", "\n"])
def test_a_blank_text_is_absent(key, text):
    assert admitted({key: text}) == {key: text}


@cases(
    "key, text, message",
    (
        "hami.io/node-scheduler-policy",
        "spraed",
        "expected binpack, spread, least-waste or kube; did you mean spread?",
    ),
    (
        "hami.io/gpu-scheduler-policy",
        "binpak",
        "expected binpack, spread, numa, mutex or topology-aware, or several of them separated by commas; "
        "did you mean binpack?",
    ),
    ("nvidia.com/numa-bind", "yes", "expected true or false"),
    (
        "nvidia.com/vgpu-mode",
        "migg",
        "expected hami-core, mig or mps, or several of them separated by commas; did you mean mig?",
    ),
    (
        "nvidia.com/use-gputype",
        '["A100"]',
        "expected parts of names of models, separated by commas, without brackets and quotes",
    ),
    (
        "nvidia.com/gpucores-limit",
        "many",
        "expected a whole number from 1 to 100, the percentage of a GPU that a container may use while "
        "no other does",
    ),
)
def test_an_unknown_word_is_refused(key, text, message):
    with pytest.raises(PodRefused) as caught:
        admitted({key: text})
    assert str(caught.value) == f"annotation {key}={text}: {message}"


@pytest.mark.parametrize("vendor", list(CATALOG), ids=lambda vendor: vendor.key)
def test_lists_of_every_vendor_are_checked(vendor):
    limits = {vendor.resources.count: "1"}
    selectors = vendor.annotations.selectors
    for key in (*selectors.use_uuids, *selectors.nouse_uuids):
        with pytest.raises(PodRefused, match="expected UUIDs of devices, separated by commas"):
            admitted({key: "a;b"}, limits)


@pytest.mark.parametrize(
    "limits",
    [{}, {"cpu": "1"}, {"nvidia.com/gpu": "0"}, {"nvidia.com/gpu": "0", "nvidia.com/gpumem": "0"}],
    ids=str,
)
def test_pods_that_request_no_devices_may_say_anything(limits):
    assert admitted({"hami.io/node-scheduler-policy": "fast"}, limits) == {
        "hami.io/node-scheduler-policy": "fast"
    }


def test_words_of_other_vendors_are_not_checked():
    said = {"huawei.com/vnpu-mode": "fast"}
    assert admitted(said) == said


def test_a_key_is_one_term_at_a_place():
    places = Counter(
        (term.key, term.place) for term in VOCABULARY.terms if term.author is not Author.HAMI
    )
    shared = {key for (key, place), count in places.items() if count > 1}
    # Hygon's and Kunlun's two kinds of devices are selected by the same annotations
    assert shared == {
        "hygon.com/use-gpuuuid",
        "hygon.com/nouse-gpuuuid",
        "hami.io/use-xpu-uuid",
        "hami.io/no-use-xpu-uuid",
        "baidu.com/use-gpuuuid",
        "baidu.com/nouse-gpuuuid",
        "huawei.com/vnpu-mode",
    }


@pytest.mark.parametrize("vendor", list(CATALOG), ids=lambda vendor: vendor.key)
def test_all_keys_and_names_of_a_vendor_have_terms(vendor):
    keys = vendor.annotations
    named = {
        *vendor.resources.names,
        keys.register,
        keys.handshake,
        keys.lock,
        keys.to_allocate,
        keys.allocated,
        *keys.extra_keys,
        *keys.selectors.names,
    }
    known = {term.key for term in VOCABULARY.terms}
    assert named - {""} - known == set()


def test_every_term_says_what_it_is():
    assert [term for term in VOCABULARY.terms if not term.meaning or not term.form.expected] == []
    assert Place.QUOTA in {term.place for term in VOCABULARY.terms}
