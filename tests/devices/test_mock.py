"""Cards described by a file."""

import os

import pytest

from hami.devices.cards import MigDevice
from hami.devices.mock import MockCards, parse_mock_cards
from hami.errors import HamiError, MalformedInput
from testing.cards import ALLOWLIST, Reports, Stop
from testing.cases import cases

TWO = """\
cards:
- &common
  uuid: GPU-a
  memory: 81920
  model: NVIDIA A100-SXM4-80GB
  mig:
    profiles:
    - {name: 1g.10gb, memory: 9728, cores: 15, slices: 1, placements: [{start: 0, size: 1}, {start: 1, size: 1}]}
    - {name: 3g.40gb, memory: 40192, cores: 43, slices: 3, placements: [{start: 0, size: 4}, {start: 4, size: 4}]}
- <<: *common
  uuid: GPU-b
  index: 4
  minor: 7
  numa: 1
  health: XID 79
  links: {GPU-a: 160}
"""


@pytest.fixture
def file(tmp_path):
    """A file with two cards."""
    path = tmp_path / "cards.yaml"
    path.write_text(TWO)
    return path


def rewrite(path, text):
    """Change the file and its modification time, whatever the resolution of the file system's clock."""
    stamp = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(stamp + 1, stamp + 1))


def test_cards_are_read(file):
    one, other = MockCards(file, ALLOWLIST).cards()
    assert (one.uuid, one.index, one.minor, one.memory_mib, one.numa, one.mig) == (
        "GPU-a",
        0,
        0,
        81920,
        None,
        False,
    )
    assert (other.index, other.minor, other.numa, other.links) == (4, 7, 1, {"GPU-a": 160})
    assert [profile.name for profile in other.profiles] == ["1g.10gb", "3g.40gb"]
    assert [place.start for place in other.profiles[1].placements] == [0, 4]


def test_only_allowed_profiles_are_offered(file):
    assert [card.profiles for card in MockCards(file).cards()] == [(), ()]


def one_card(fields):
    """A file with one card and these fields from line 4 on."""
    return f"cards:\n- uuid: a\n  memory: 1\n  {fields}"


@cases(
    "text, place, says, value",
    ("empty", "", "", "expected a mapping", "None"),
    ("no list", "cards: 1", "cards", "expected a list", "1"),
    ("another key", "gpus: []", "gpus", "expected one of cards", "[]"),
    ("no cards", "{}", "cards", "missing, expected a list", ""),
    ("no mapping", "cards:\n- 1", "cards[0]", "expected a mapping", "1"),
    ("memory missing", "cards: [{uuid: a}]", "cards[0].memory", "missing, expected a whole", ""),
    ("uuid missing", "cards: [{memory: 1}]", "cards[0].uuid", "missing, expected a text", ""),
    ("a unit", "cards: [{uuid: a, memory: 10GB}]", "cards[0].memory", "a whole number", "10GB"),
    ("negative", "cards: [{uuid: a, memory: -1}]", "cards[0].memory", "a whole number", "-1"),
    ("a bool", "cards: [{uuid: a, memory: true}]", "cards[0].memory", "a whole number", "True"),
    ("long", f"cards: [{{uuid: {'x' * 51}}}]", "cards[0].uuid", "50 characters", "x" * 51),
    (
        "one uuid twice",
        "cards: [{uuid: a, memory: 1}, {uuid: a, memory: 1}]",
        "cards[1].uuid",
        "expected a value of no other card",
        "a",
    ),
    (
        "one index twice",
        "cards: [{uuid: a, memory: 1}, {uuid: b, memory: 1, index: 0}]",
        "cards[1].index",
        "expected a value of no other card",
        "0",
    ),
    ("a typing error", one_card("memroy: 2"), "cards[0].memroy", "expected one of health", "2"),
    ("a typing error at the top", "cards: []\nmore: 1", "more", "expected one of cards", "1"),
    ("health", one_card("health: [1]"), "cards[0].health", "true, false, or a text", "[1]"),
    (
        "a profile without placements",
        one_card("mig:\n    profiles:\n    - {name: 1g.5gb, memory: 1, cores: 1, slices: 1}"),
        "cards[0].mig.profiles[0].placements",
        "missing, expected a list",
        "",
    ),
    ("links", one_card("links: {b: x}"), "cards[0].links", "whole numbers", "{'b': 'x'}"),
    ("no YAML", "cards:\n- uuid: [", "not YAML in line 2", "the node content", "- uuid: ["),
    (
        "a recursive mapping",
        one_card("links: &a {b: *a}"),
        "cards[0].links",
        "whole numbers",
        "{'b': {...}}",
    ),
    (
        "a deep list",
        one_card(f"health: {'[' * 200 + ']' * 200}"),
        "cards[0].health",
        "true, false, or a text",
        "[[[",
    ),
    (
        "a key twice",
        one_card("memory: 2"),
        "not YAML in line 4",
        "duplicate key 'memory'",
        "memory: 2",
    ),
)
def test_an_error_names_place_and_value(text, place, says, value):
    with pytest.raises(MalformedInput) as caught:
        parse_mock_cards(text, "cards.yaml")
    assert str(caught.value).startswith(f"cards.yaml: {place}")
    assert says in str(caught.value)
    assert value in caught.value.text


def test_merged_mappings_may_be_reused_and_overridden():
    text = """\
cards:
- &a {uuid: a, memory: 1, numa: 0}
- &b {<<: *a, uuid: b, memory: !!int 2, index: 1}
- {<<: [*b, *a], uuid: !!str 3, index: 2}
"""
    assert [
        (one.card.uuid, one.card.memory_mib, one.card.numa)
        for one in parse_mock_cards(text, "cards.yaml")
    ] == [("a", 1, 0), ("b", 2, 0), ("3", 2, 0)]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(HamiError, match="--mock-devices .*cards.yaml: No such file"):
        MockCards(tmp_path / "cards.yaml")


def test_a_changed_file_is_read_again(file):
    source = MockCards(file)
    rewrite(file, TWO.replace("numa: 1", "numa: 0"))
    assert source.cards()[1].numa == 0


def test_a_malformed_file_changes_nothing(file, caplog):
    source = MockCards(file)
    rewrite(file, "cards: 1")
    assert [card.uuid for card in source.cards()] == ["GPU-a", "GPU-b"]
    source.cards()
    assert [record.message for record in caplog.records] == ["mock devices not reloaded"]


def test_health_follows_the_file(file):
    """The file changes after each check of it."""
    texts = [
        TWO,
        TWO.replace("XID 79", "true"),
        TWO.replace("XID 79", "lost"),
        TWO.replace("XID 79", "false"),
    ]
    changes = iter(texts)

    def change(seconds):
        rewrite(file, next(changes))

    left = iter([False] * len(texts) + [True])
    source = MockCards(file)
    heard = Reports()
    source.watch_health(heard, Stop(lambda: next(left), change))
    assert heard.causes == [("GPU-b", "XID 79"), ("GPU-b", ""), ("GPU-b", "lost")]


def test_a_changed_file_is_reported_until_its_cards_are_read(file):
    """The file changes after each check of it."""
    less = TWO[: TWO.index("- <<")]
    changes, reported = iter([TWO, less, less, less]), []

    def change(seconds):
        rewrite(file, next(changes))

    def on_change():
        reported.append(len(source.cards()))

    left = iter([False] * 4 + [True])
    source = MockCards(file, on_change=on_change)
    source.watch_health(Reports(), Stop(lambda: next(left), change))
    assert reported == [2, 2, 1, 1]


@pytest.fixture
def instances(file):
    """Instances of two cards; the first is in MIG mode."""
    found = MockCards(file, ALLOWLIST).instances
    found.enable_mig("GPU-a")
    return found


def test_enabled_mig_mode_is_stored(file, instances):
    assert [card.mig for card in MockCards(file, ALLOWLIST).cards()] == [True, False]


def test_an_instance_is_created_found_and_destroyed(file, instances):
    created = instances.create("GPU-a", "3g.40gb", 4, 4)
    assert created.uuid.startswith("MIG-")
    assert (created.gpu, created.profile, created.start, created.size) == ("GPU-a", "3g.40gb", 4, 4)
    assert list(MockCards(file, ALLOWLIST).instances.existing("GPU-a")) == [created]
    instances.destroy(created)
    assert list(instances.existing("GPU-a")) == []


def test_uuids_of_instances_are_never_reused(instances):
    first = instances.create("GPU-a", "1g.10gb", 0, 1)
    instances.destroy(first)
    second = instances.create("GPU-a", "1g.10gb", 0, 1)
    assert first.uuid != second.uuid
    assert first.gpu_instance == second.gpu_instance


@cases(
    "gpu, profile, start, size, says",
    ("GPU-b", "1g.10gb", 0, 1, "not in MIG mode"),
    ("GPU-c", "1g.10gb", 0, 1, "no such card"),
    ("GPU-a", "2g.20gb", 0, 2, "no profile 2g.20gb, only 1g.10gb, 3g.40gb"),
    ("GPU-a", "1g.10gb", 5, 1, "no placement at 5"),
    ("GPU-a", "3g.40gb", 0, 4, "insufficient resources"),
)
def test_an_instance_that_cannot_be_created_is_refused(instances, gpu, profile, start, size, says):
    instances.create("GPU-a", "1g.10gb", 1, 1)
    with pytest.raises(HamiError, match=says):
        instances.create(gpu, profile, start, size)


def test_a_busy_instance_is_not_destroyed(file, instances):
    created = instances.create("GPU-a", "1g.10gb", 0, 1)
    rewrite(file, TWO.replace("  mig:\n", f"  mig:\n    busy: [{created.uuid}]\n", 1))
    again = MockCards(file, ALLOWLIST).instances
    assert [one.busy for one in again.existing("GPU-a")] == [True]
    with pytest.raises(HamiError, match="in use"):
        again.destroy(created)


def test_a_missing_instance_cannot_be_destroyed(instances):
    created = instances.create("GPU-a", "1g.10gb", 0, 1)
    instances.destroy(created)
    with pytest.raises(HamiError, match="no instance MIG-"):
        instances.destroy(created)


def test_a_card_without_profiles_has_no_mig_mode(tmp_path):
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{uuid: GPU-a, memory: 1}]")
    with pytest.raises(HamiError, match="not supported"):
        MockCards(path).instances.enable_mig("GPU-a")


def test_an_unreadable_state_is_an_error(file, instances):
    file.with_name("cards.yaml.state").write_text("{")
    with pytest.raises(HamiError, match="cards.yaml.state"):
        instances.existing("GPU-a")


def test_an_unknown_card_is_an_error(instances):
    instances.create("GPU-a", "1g.10gb", 0, 1)
    assert list(instances.existing("GPU-b")) == []
    with pytest.raises(HamiError, match="GPU-c: no such card"):
        instances.existing("GPU-c")


def test_existing_instances_are_listed_in_the_file(tmp_path):
    path = tmp_path / "cards.yaml"
    path.write_text(
        "cards: [{uuid: GPU-a, memory: 1, mig: {enabled: true, instances: [{uuid: MIG-1, profile: 1g.10gb, "
        "memory: 9728}, {uuid: MIG-2, profile: 2g.20gb, memory: 19968, compute_instance: 3}]}}]"
    )
    assert list(MockCards(path).instances.devices("GPU-a")) == [
        MigDevice(
            gpu="GPU-a",
            uuid="MIG-1",
            profile="1g.10gb",
            memory_mib=9728,
            gpu_instance=1,
            compute_instance=0,
        ),
        MigDevice(
            gpu="GPU-a",
            uuid="MIG-2",
            profile="2g.20gb",
            memory_mib=19968,
            gpu_instance=2,
            compute_instance=3,
        ),
    ]
    with pytest.raises(HamiError, match="GPU-b: no such card"):
        MockCards(path).instances.devices("GPU-b")
