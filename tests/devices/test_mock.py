"""Cards that stand in a file."""

import os

import pytest

from hami.errors import HamiError, MalformedInput
from hami.devices.cards import MigDevice
from hami.devices.mock import MockCards, parse_mock_cards
from tests.devices.cards import ALLOWLIST

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
    """Change the file in a way that cannot go unseen, whatever the clock of the file system."""
    stamp = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(stamp + 1, stamp + 1))


def test_cards_are_read(file):
    one, other = MockCards(file, ALLOWLIST).cards()
    assert (one.uuid, one.index, one.minor, one.memory_mib, one.numa, one.mig) == ("GPU-a", 0, 0, 81920, None, False)
    assert (other.index, other.minor, other.numa, other.links) == (4, 7, 1, {"GPU-a": 160})
    assert [profile.name for profile in other.profiles] == ["1g.10gb", "3g.40gb"]
    assert [place.start for place in other.profiles[1].placements] == [0, 4]


def test_only_profiles_that_are_allowed_are_offered(file):
    assert [card.profiles for card in MockCards(file).cards()] == [(), ()]


@pytest.mark.parametrize("text, line, field, says", [
    pytest.param("", 1, "", "expected cards, a list", id="empty"),
    pytest.param("cards: 1", 1, "cards", "expected a list of mappings", id="no list"),
    pytest.param("gpus: []", 1, "cards", "expected a list of mappings", id="another word"),
    pytest.param("cards:\n- 1", 2, "cards[0]", "expected a mapping", id="no mapping"),
    pytest.param("cards:\n- uuid: GPU-a\n", 2, "cards[0].memory", "it is missing", id="memory missing"),
    pytest.param("cards:\n- memory: 1\n", 2, "cards[0].uuid", "it is missing", id="uuid missing"),
    pytest.param("cards:\n- uuid: GPU-a\n  memory: 10GB", 3, "cards[0].memory", "expected a whole number", id="a unit"),
    pytest.param("cards:\n- uuid: GPU-a\n  memory: -1", 3, "cards[0].memory", "expected a whole number", id="negative"),
    pytest.param("cards:\n- uuid: GPU-a\n  memory: true", 3, "cards[0].memory", "expected a whole number", id="a bool"),
    pytest.param(f"cards:\n- uuid: {'x' * 51}\n  memory: 1", 2, "cards[0].uuid", "50 characters", id="uuid too long"),
    pytest.param("cards:\n- {uuid: a, memory: 1}\n- {uuid: a, memory: 1}", 3, "cards[1].uuid", "another one",
                 id="one uuid twice"),
    pytest.param("cards:\n- {uuid: a, memory: 1}\n- {uuid: b, memory: 1,\n   index: 0}", 4, "cards[1].index",
                 "another one", id="one index twice"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  memroy: 2", 4, "cards[0].memroy", "expected one of health",
                 id="a typing error"),
    pytest.param("cards: []\nmore: 1", 2, "more", "expected one of cards", id="a typing error at the top"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  health: [1]", 4, "cards[0].health", "true, false, or a text",
                 id="health"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  mig:\n    profiles:\n    - {name: 1g.5gb, memory: 1, cores: 1}", 6,
                 "cards[0].mig.profiles[0].placements", "expected a list", id="a profile without places"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  links: {b: x}", 4, "cards[0].links", "whole numbers", id="links"),
    pytest.param("cards:\n- uuid: [", 2, "", "not YAML", id="no YAML"),
    pytest.param("cards:\n- uuid: a\n  memory: 2024-13-45", 3, "cards[0].memory", "expected a whole number",
                 id="no date"),
    pytest.param("cards:\n- uuid: a\n  memory: 0b_", 3, "cards[0].memory", "expected a whole number", id="no digits"),
    pytest.param(f"cards:\n- uuid: a\n  memory: {'9' * 5000}", 3, "cards[0].memory", "expected a whole number",
                 id="5000 digits"),
    pytest.param(f"cards:\n- uuid: a\n  memory: 0x{'9' * 5000}", 3, "cards[0].memory", "expected a whole number",
                 id="5000 digits of another base"),
    pytest.param(f"cards:\n- uuid: a\n  memory: 1{':1' * 300}.0", 3, "cards[0].memory", "expected a whole number",
                 id="beyond floats"),
    pytest.param(f"cards:\n- uuid: a\n  memory: 1\n  links: {{b: 0x{'9' * 5000}}}", 4, "cards[0].links",
                 "whole numbers", id="a link of 5000 digits"),
    pytest.param("cards:\n- uuid: !!int abc\n  memory: 1", 2, "cards[0].uuid", "expected no tag", id="no int"),
    pytest.param("cards:\n- uuid: a\n  health: !!bool abc", 3, "cards[0].health", "expected no tag", id="no bool"),
    pytest.param("cards:\n- uuid: a\n  health: !!timestamp x", 3, "cards[0].health", "expected no tag", id="no time"),
    pytest.param("cards:\n- uuid: !gpu a\n  memory: 1", 2, "cards[0].uuid", "expected no tag: '!gpu'", id="a tag"),
    pytest.param("cards:\n- !gpu\n  uuid: a", 2, "cards[0]", "expected no tag: '!gpu'", id="a tag of a mapping"),
    pytest.param("cards: !!str []", 1, "cards", "expected no tag", id="a tag of a list"),
    pytest.param("cards:\n- !gpu uuid: a", 2, "cards[0].uuid", "expected no tag: '!gpu'", id="a tag of a key"),
    pytest.param("cards:\n- <<: 3\n  uuid: a", 2, "cards[0].<<",
                 "expected a mapping or a list", id="nothing to take in"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  links: {<<: [{}, 3]}", 4, "cards[0].links.<<",
                 "expected a mapping or a list", id="nothing to take in further down"),
    pytest.param("cards:\n- uuid: <<\n  memory: 1", 2, "cards[0].uuid", "expected a text", id="<< as a value"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  links: {[a]: 1}", 4, "cards[0].links", "whole numbers",
                 id="a list as key"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  links: &a {b: *a}", 4, "cards[0].links", "whole numbers",
                 id="a mapping in itself"),
    pytest.param(f"cards:\n- uuid: a\n  memory: 1\n  health: {'[' * 200 + ']' * 200}", 4, "cards[0].health",
                 "true, false, or a text", id="a deep list"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  memory: 2", 4, "cards[0].memory",
                 "expected once, it stands in line 3 too: '2'", id="a key twice"),
    pytest.param("cards: []\ncards: []", 2, "cards", "expected once", id="a key twice at the top"),
    pytest.param("cards:\n- uuid: a\n  memory: 1\n  links: {b: 1,\n   b: 2}", 5, "cards[0].links.b", "expected once",
                 id="a link twice"),
])
def test_an_error_names_line_and_field(text, line, field, says):
    with pytest.raises(MalformedInput) as caught:
        parse_mock_cards(text, "cards.yaml")
    assert str(caught.value).startswith(f"cards.yaml: line {line}: {field}".removesuffix(": "))
    assert says in str(caught.value)


@pytest.mark.parametrize("text, says", [
    pytest.param("[" * 3000, "lists or mappings lie too deep", id="too deep"),
    pytest.param('cards: "\\UFFFFFFFF"', "not YAML", id="no character"),
    pytest.param("\0", "not YAML", id="no text"),
])
def test_what_cannot_be_read_at_all_names_the_file(text, says):
    with pytest.raises(MalformedInput, match=f"^cards.yaml: .*{says}"):
        parse_mock_cards(text, "cards.yaml")


def test_what_is_taken_in_may_stand_in_several_places_and_be_replaced():
    text = """\
cards:
- &a {uuid: a, memory: 1, numa: 0}
- &b {<<: *a, uuid: b, memory: !!int 2, index: 1}
- {<<: [*b, *a], uuid: !!str 3, index: 2}
"""
    assert [(one.card.uuid, one.card.memory_mib, one.card.numa) for one in parse_mock_cards(text, "cards.yaml")] == [
        ("a", 1, 0), ("b", 2, 0), ("3", 2, 0)]


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path):
    with pytest.raises(HamiError, match="--mock-devices .*cards.yaml: No such file"):
        MockCards(tmp_path / "cards.yaml")


def test_a_file_that_has_changed_is_read_again(file):
    source = MockCards(file)
    rewrite(file, TWO.replace("numa: 1", "numa: 0"))
    assert source.cards()[1].numa == 0


def test_a_file_that_is_broken_changes_nothing(file, caplog):
    source = MockCards(file)
    rewrite(file, "cards: 1")
    assert [card.uuid for card in source.cards()] == ["GPU-a", "GPU-b"]
    source.cards()
    assert [record.message for record in caplog.records] == ["the mock devices stay as they were"]


def test_health_follows_the_file(file):
    """Each look at the file is followed by one change of it."""
    texts = [TWO, TWO.replace("XID 79", "true"), TWO.replace("XID 79", "lost"), TWO.replace("XID 79", "false")]
    changes, said = iter(texts), []

    def change(seconds):
        rewrite(file, next(changes))
    left = iter([False] * len(texts) + [True])
    source = MockCards(file, pause=change)
    source.watch_health(lambda uuid, reason: said.append((uuid, reason)), lambda: next(left))
    assert said == [("GPU-b", "XID 79"), ("GPU-b", ""), ("GPU-b", "lost")]


def test_other_cards_than_were_told_of_are_said_until_they_are(file):
    """Each look at the file is followed by one change of it."""
    less = TWO[:TWO.index("- <<")]
    changes, said = iter([TWO, less, less, less]), []

    def change(seconds):
        rewrite(file, next(changes))

    def look():
        said.append(len(source.cards()))
    left = iter([False] * 4 + [True])
    source = MockCards(file, pause=change, changed=look)
    source.watch_health(lambda uuid, reason: None, lambda: next(left))
    assert said == [2, 2, 1, 1]


@pytest.fixture
def instances(file):
    """Instances of cards of which the first is in MIG mode."""
    found = MockCards(file, ALLOWLIST).instances
    found.enable_mig("GPU-a")
    return found


def test_mig_mode_is_switched_on_and_stays_on(file, instances):
    assert [card.mig for card in MockCards(file, ALLOWLIST).cards()] == [True, False]


def test_an_instance_is_made_found_and_destroyed(file, instances):
    made = instances.create("GPU-a", "3g.40gb", 4, 4)
    assert made.uuid.startswith("MIG-")
    assert (made.gpu, made.profile, made.start, made.size) == ("GPU-a", "3g.40gb", 4, 4)
    assert list(MockCards(file, ALLOWLIST).instances.existing("GPU-a")) == [made]
    instances.destroy(made)
    assert list(instances.existing("GPU-a")) == []


def test_no_two_instances_that_ever_were_have_one_uuid(instances):
    first = instances.create("GPU-a", "1g.10gb", 0, 1)
    instances.destroy(first)
    second = instances.create("GPU-a", "1g.10gb", 0, 1)
    assert first.uuid != second.uuid
    assert first.gpu_instance == second.gpu_instance


@pytest.mark.parametrize("gpu, profile, start, size, says", [
    ("GPU-b", "1g.10gb", 0, 1, "not in MIG mode"),
    ("GPU-c", "1g.10gb", 0, 1, "no such card"),
    ("GPU-a", "2g.20gb", 0, 2, "no profile 2g.20gb, only 1g.10gb, 3g.40gb"),
    ("GPU-a", "1g.10gb", 5, 1, "cannot lie at 5"),
    ("GPU-a", "3g.40gb", 0, 4, "insufficient resources"),
])
def test_what_cannot_be_made_is_refused(instances, gpu, profile, start, size, says):
    instances.create("GPU-a", "1g.10gb", 1, 1)
    with pytest.raises(HamiError, match=says):
        instances.create(gpu, profile, start, size)


def test_an_instance_in_use_is_busy_and_stays(file, instances):
    made = instances.create("GPU-a", "1g.10gb", 0, 1)
    rewrite(file, TWO.replace("  mig:\n", f"  mig:\n    busy: [{made.uuid}]\n", 1))
    again = MockCards(file, ALLOWLIST).instances
    assert [one.busy for one in again.existing("GPU-a")] == [True]
    with pytest.raises(HamiError, match="in use"):
        again.destroy(made)


def test_what_is_not_there_cannot_be_destroyed(instances):
    made = instances.create("GPU-a", "1g.10gb", 0, 1)
    instances.destroy(made)
    with pytest.raises(HamiError, match="no instance MIG-"):
        instances.destroy(made)


def test_a_card_without_profiles_has_no_mig_mode(tmp_path):
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{uuid: GPU-a, memory: 1}]")
    with pytest.raises(HamiError, match="not supported"):
        MockCards(path).instances.enable_mig("GPU-a")


def test_a_state_that_cannot_be_read_is_no_empty_one(file, instances):
    file.with_name("cards.yaml.state").write_text("{")
    with pytest.raises(HamiError, match="cards.yaml.state"):
        instances.existing("GPU-a")


def test_a_card_that_is_not_in_the_file_is_no_empty_one(instances):
    instances.create("GPU-a", "1g.10gb", 0, 1)
    assert list(instances.existing("GPU-b")) == []
    with pytest.raises(HamiError, match="GPU-c: no such card"):
        instances.existing("GPU-c")


def test_what_somebody_has_cut_stands_in_the_file(tmp_path):
    path = tmp_path / "cards.yaml"
    path.write_text("cards: [{uuid: GPU-a, memory: 1, mig: {enabled: true, instances: [{uuid: MIG-1, profile: 1g.10gb, "
                    "memory: 9728}, {uuid: MIG-2, profile: 2g.20gb, memory: 19968, compute_instance: 3}]}}]")
    assert list(MockCards(path).instances.devices("GPU-a")) == [
        MigDevice(gpu="GPU-a", uuid="MIG-1", profile="1g.10gb", memory_mib=9728, gpu_instance=1, compute_instance=0),
        MigDevice(gpu="GPU-a", uuid="MIG-2", profile="2g.20gb", memory_mib=19968, gpu_instance=2, compute_instance=3)]
    with pytest.raises(HamiError, match="GPU-b: no such card"):
        MockCards(path).instances.devices("GPU-b")
