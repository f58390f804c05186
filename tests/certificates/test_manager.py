"""Secret, webhook configuration and file are brought to what they have to be, by one replica or several."""

import logging
import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from hami.codec.trust import SecretRecord, Webhook, WebhookConfiguration
from hami.certificates.revision import CA_CERTIFICATES, CA_KEY, CERTIFICATE, KEY, Terms
from hami.certificates.manager import RETRY_SECONDS, CertificateManager, Place
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from tests.fake_cluster import FakeCluster, no_answer

START = datetime(2026, 8, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECRET = ("hami", "self-signed")
SERVICE = Webhook(name="pods.hami.io", service=("hami", "scheduler"))


class World:
    """A cluster, a clock, and replicas of which each has its own folder."""

    def __init__(self, folder, *webhooks):
        self.folder = folder
        self.fake = FakeCluster()
        self.now = START
        if webhooks:
            self.fake.put_webhook(WebhookConfiguration(name="hook", webhooks=webhooks, resource_version=""))

    def replica(self, name="a", leads=True):
        return Replica(self, self.folder / name / "tls.pem", leads)

    @property
    def data(self):
        return self.fake.secrets[SECRET].data

    @property
    def bundles(self):
        return [webhook.bundle for webhook in self.fake.webhooks["hook"].webhooks]

    def change(self, **data):
        secret = self.fake.secrets[SECRET]
        names = {"ca_key": CA_KEY, "certificate": CERTIFICATE}
        self.fake.put_secret(replace(secret, data=secret.data | {names[key]: value for key, value in data.items()}))

    def writes(self):
        return [call.method for call in self.fake.calls if call.method.startswith(("create", "update", "publish"))]


class Replica(CertificateManager):
    def __init__(self, world, file, leads):
        self.leads, self.file, self.waited = leads, file, []
        names = frozenset({"default.svc"})
        place = Place(namespace=SECRET[0], secret=SECRET[1], webhook="hook", file=file, names=names)
        super().__init__(world.fake, self, place, Terms(), clock=lambda: 1.0, now=lambda: world.now)

    def leads_until(self):
        return 2.0 if self.leads else 0.0

    def served(self):
        return self.file.read_bytes()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, SERVICE)


def served(data):
    return data[CERTIFICATE] + data[KEY]


def test_the_first_replica_comes_up_alone(world):
    replica = world.replica(leads=False)
    replica.prepare(replica.waited.append)
    assert replica.served() == served(world.data) and replica.waited == []
    assert world.bundles == [b""]  # that is for the leader
    replica.leads = True
    replica.look()
    assert world.bundles == [world.data[CA_CERTIFICATES]]
    assert world.writes() == ["create_secret", "publish_bundle"]


def test_what_lies_in_the_folder_can_be_served_and_is_for_no_other_eyes(world):
    replica = world.replica()
    replica.look()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(replica.file, replica.file)
    assert stat.S_IMODE(replica.file.stat().st_mode) == 0o600
    assert [path.name for path in replica.file.parent.iterdir()] == ["tls.pem"]
    assert world.data[CA_KEY] not in replica.served()


def test_a_follower_waits_for_the_leader_where_the_secret_names_no_ca(world, caplog):
    world.replica().look()
    secret = world.fake.secrets[SECRET]
    world.fake.put_secret(replace(secret, data={key: secret.data[key] for key in (CERTIFICATE, KEY)}))
    follower = world.replica("b", leads=False)
    follower.tick()
    assert not follower.is_trusted() and follower.served() == served(secret.data) and caplog.text == ""


def test_the_end_of_what_is_served_is_known(world):
    replica = world.replica("b", leads=False)
    assert replica.ends() is None
    world.replica().look()
    replica.look()
    assert replica.ends() == (START + 90 * DAY).timestamp()


def test_nothing_is_written_while_all_is_right(world):
    replica = world.replica()
    replica.look()
    before, written = replica.file.stat(), world.writes()
    replica.look()
    assert (replica.file.stat().st_ino, world.writes()) == (before.st_ino, written)


def test_followers_take_what_the_leader_has_made_and_write_nothing(world):
    leader, follower = world.replica("a"), world.replica("b", leads=False)
    follower.look()
    assert world.writes() == []
    leader.look()
    follower.look()
    assert follower.served() == leader.served() and world.writes() == ["create_secret", "publish_bundle"]
    world.now += 60 * DAY
    follower.look()
    leader.look()
    follower.look()
    assert follower.served() == leader.served() == served(world.data)
    assert world.writes() == ["create_secret", "publish_bundle", "update_secret"]


def test_two_replicas_that_start_at_the_same_time_have_one_ca(world):
    first, second = world.replica("a", leads=False), world.replica("b", leads=False)

    def start_the_other(call):
        if call.method == "create_secret":
            world.fake.on_call = lambda call: None
            second.prepare(second.waited.append)

    world.fake.on_call = start_the_other
    first.prepare(first.waited.append)
    assert first.served() == second.served() == served(world.data)
    assert world.writes() == ["create_secret", "create_secret"] and first.waited == []


def test_two_that_both_think_they_lead_make_one_certificate(world):
    first, second = world.replica("a"), world.replica("b")
    first.look()
    world.now += 60 * DAY

    def let_the_other(call):
        if call.method == "update_secret":
            world.fake.on_call = lambda call: None
            second.look()

    world.fake.on_call = let_the_other
    with pytest.raises(Conflict):
        first.look()
    first.look()
    assert first.served() == second.served() == served(world.data)


@pytest.mark.parametrize("foreign", [b"", b"theirs"], ids=["removed", "replaced"])
def test_a_bundle_that_somebody_changed_is_healed(world, foreign):
    replica = world.replica()
    replica.look()
    world.fake.put_webhook(replace(world.fake.webhooks["hook"], webhooks=(replace(SERVICE, bundle=foreign),)))
    replica.look()
    assert world.bundles == [world.data[CA_CERTIFICATES]]


def test_all_webhooks_of_the_configuration_get_the_bundle(tmp_path):
    world = World(tmp_path, SERVICE, Webhook(name="other.hami.io", url="https://127.0.0.1:8443/webhook"))
    world.replica().look()
    assert world.bundles == [world.data[CA_CERTIFICATES]] * 2


def test_a_ca_is_rotated_with_an_overlap(world):
    leader, follower = world.replica("a"), world.replica("b", leads=False)
    leader.look()
    (old,) = world.bundles
    world.change(ca_key=b"")
    before = leader.served()
    leader.look()
    assert world.bundles == [world.data[CA_CERTIFICATES]] and old in world.data[CA_CERTIFICATES] != old
    world.now += timedelta(minutes=9)
    leader.look()  # from now on it knows that the API server has both
    world.now += timedelta(minutes=9)
    leader.look()
    assert leader.served() == before
    world.now += timedelta(minutes=2)
    leader.look()
    follower.look()
    assert leader.served() == follower.served() != before and world.bundles == [world.data[CA_CERTIFICATES]]


def test_a_leader_of_another_term_counts_the_overlap_anew(world):
    leader = world.replica()
    leader.look()
    world.change(ca_key=b"")
    leader.look()
    leader.look()
    before = leader.served()
    leader.leads = False
    world.now += timedelta(minutes=20)
    leader.look()
    leader.leads = True
    leader.look()
    assert leader.served() == before
    world.now += timedelta(minutes=10)
    leader.look()
    assert leader.served() != before


def test_a_deleted_secret_is_made_anew_and_published(world):
    replica = world.replica()
    replica.look()
    old = world.data
    del world.fake.secrets[SECRET]
    replica.look()
    assert world.data[CA_CERTIFICATES] != old[CA_CERTIFICATES] and world.bundles == [world.data[CA_CERTIFICATES]]
    assert replica.served() == served(world.data)


def test_a_secret_that_is_deleted_while_it_is_written_is_a_conflict(world):
    replica = world.replica()
    replica.look()
    world.now += 60 * DAY
    world.fake.fail("update_secret", NotFound("gone", 404))
    with pytest.raises(Conflict):
        replica.look()


def test_a_broken_secret_leaves_a_follower_what_it_serves(world):
    leader, follower = world.replica("a"), world.replica("b", leads=False)
    leader.look()
    follower.look()
    before = follower.served()
    world.change(certificate=b"nonsense")
    follower.look()
    assert follower.served() == before
    leader.look()
    follower.look()
    assert follower.served() == leader.served() != before


def test_without_a_webhook_configuration_there_is_a_certificate_all_the_same(tmp_path):
    world = World(tmp_path)
    world.replica().look()
    assert world.writes() == ["create_secret"]


def test_a_webhook_configuration_that_cannot_be_read_holds_up_no_renewal(world):
    replica = world.replica()
    replica.look()
    before, world.now = replica.served(), world.now + 60 * DAY
    world.fake.fail("webhook_configuration", ClusterError("forbidden", 403))
    with pytest.raises(ClusterError, match="forbidden"):
        replica.look()
    assert replica.served() == served(world.data) != before


def test_nobody_is_ready_before_the_api_server_trusts_what_is_served(world):
    leader, follower = world.replica("a", leads=False), world.replica("b", leads=False)
    leader.prepare(leader.waited.append)
    for replica in (leader, follower):
        replica.tick()
        assert not replica.is_trusted()
    leader.leads = True
    leader.tick()
    assert leader.is_trusted() and not follower.is_trusted()
    follower.tick()
    assert follower.is_trusted()
    world.fake.put_webhook(replace(world.fake.webhooks["hook"], webhooks=(SERVICE,)))
    follower.tick()
    assert follower.is_trusted()  # to leave the Service would help nobody


@pytest.mark.parametrize("leads", [False, True])
def test_a_webhook_configuration_that_is_not_there_or_cannot_be_read_keeps_nobody_from_being_ready(world, leads):
    world.replica().look()
    unreadable, absent = world.replica("b", leads), world.replica("c", leads)
    world.fake.fail("webhook_configuration", ClusterError("forbidden", 403))
    unreadable.tick()
    del world.fake.webhooks["hook"]
    absent.tick()
    assert unreadable.is_trusted() and absent.is_trusted()


def test_a_start_waits_for_the_api_server(world):
    replica = world.replica(leads=False)
    world.fake.fail("secret", no_answer(), times=2)
    replica.prepare(replica.waited.append)
    assert replica.waited == [RETRY_SECONDS] * 2 and replica.served() == served(world.data)


def test_a_restart_beside_an_api_server_that_is_away_serves_what_was_served(world):
    world.replica().look()
    again = world.replica(leads=False)
    world.fake.fail("secret", no_answer())
    again.prepare(again.waited.append)
    assert again.waited == []


def test_a_restart_takes_the_certificate_of_now(world):
    follower = world.replica("b", leads=False)
    world.replica().look()
    follower.look()
    world.now += 60 * DAY
    world.replica().look()
    follower.prepare(follower.waited.append)
    assert follower.served() == served(world.data)


def test_an_expired_secret_is_renewed_by_the_replica_that_starts(world):
    world.replica().look()
    world.now += 100 * DAY
    second = world.replica("b", leads=False)
    second.prepare(second.waited.append)
    assert second.served() == served(world.data) and world.writes()[-1] == "update_secret"


def test_a_folder_that_cannot_be_written_is_named(world):
    (world.folder / "a").write_text("a file")
    replica = world.replica()
    with pytest.raises(HamiError, match=f"certificate file {world.folder}/a"):
        replica.prepare(replica.waited.append)


def test_what_fails_is_said_once_and_tried_again(world, caplog):
    caplog.set_level(logging.INFO)
    replica = world.replica()
    world.fake.fail("secret", ClusterError("forbidden", 403), times=3)
    for _ in range(4):
        replica.tick()
    assert [record.message for record in caplog.records] == [
        "certificates cannot be looked after", "certificates revised", "CA bundle written"]
    assert replica.served() == served(world.data)


def test_one_who_was_slower_is_no_failure(world, caplog):
    replica = world.replica()
    world.fake.fail("create_secret", Conflict("exists", 409))
    replica.tick()
    replica.tick()
    assert replica.served() == served(world.data)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_loop_looks_at_once_and_ends_when_told(world):
    replica = world.replica()
    replica.stop()
    replica.run()
    assert replica.served() == served(world.data)


def test_a_broken_program_does_not_end_the_loop(world, caplog):
    world.fake.fail("secret", RuntimeError("bug"))
    world.replica().tick()
    assert caplog.records[-1].exc_info


def test_no_key_shows_in_logs_or_errors(world):
    world.replica().look()
    assert "data" not in repr(world.fake.secrets[SECRET])
    assert isinstance(world.fake.secrets[SECRET], SecretRecord)
