"""Secret, webhook configuration and file are kept up to date, by one replica or several."""

import logging
import ssl
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

from hami.certificates.manager import CONFLICTS, RETRY_S, CertificateManager, CertificateSettings
from hami.certificates.revision import CA_CERTIFICATES, CA_KEY, CERTIFICATE, KEY, Lifetimes
from hami.codec.trust import SecretRecord, Webhook, WebhookConfiguration
from hami.errors import ClusterError, Conflict, HamiError, NotFound
from testing.cases import cases
from testing.fake_cluster import FakeCluster, no_answer

START = datetime(2026, 8, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
SECRET = ("hami", "self-signed")
PREVIOUS = "tls"
LIFETIMES = Lifetimes()
SERVICE = Webhook(name="pods.hami.io", service=("hami", "scheduler"))


class World:
    """A cluster, a clock, and replicas with a folder each."""

    def __init__(self, folder, *webhooks):
        self.folder = folder
        self.fake = FakeCluster()
        self.now = START
        if webhooks:
            self.fake.put_webhook(
                WebhookConfiguration(name="hook", webhooks=webhooks, resource_version="")
            )

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
        self.fake.put_secret(
            replace(secret, data=secret.data | {names[key]: value for key, value in data.items()})
        )

    def ship(self):
        """Creates the Secret of the manifests."""
        self.fake.put_secret(SecretRecord(namespace=SECRET[0], name=SECRET[1], data={}))

    def writes(self):
        return [
            ("update_secret" if call.secret.resource_version else "create_secret")
            if call.method == "write_secret"
            else call.method
            for call in self.fake.calls
            if call.method in ("write_secret", "publish_bundle")
        ]


class Replica(CertificateManager):
    def __init__(self, world, file, leads):
        self.leads, self.file, self.waits = leads, file, []
        settings = CertificateSettings(
            namespace=SECRET[0],
            secret=SECRET[1],
            webhook="hook",
            file=file,
            default_names=frozenset({"default.svc"}),
            previous_secret=PREVIOUS,
        )
        super().__init__(world.fake, lambda: self.leads, settings, now=lambda: world.now)

    def served(self):
        return self.file.read_bytes()


@pytest.fixture
def world(tmp_path):
    return World(tmp_path, SERVICE)


def served(data):
    return data[CERTIFICATE] + data[KEY]


def start_both_at_once(world, first, second):
    """Starts *first*, and *second* when *first* is about to write the Secret."""

    def start_the_other(call):
        if call.method == "write_secret":
            world.fake.on_call = lambda call: None
            second.prepare(second.waits.append)

    world.fake.on_call = start_the_other
    first.prepare(first.waits.append)
    assert first.served() == second.served() == served(world.data)


def test_the_first_replica_creates_the_certificate_without_leading(world):
    replica = world.replica(leads=False)
    replica.prepare(replica.waits.append)
    assert replica.served() == served(world.data)
    assert replica.waits == []
    assert world.bundles == [b""]  # only the leader publishes
    replica.leads = True
    replica.sync()
    assert world.bundles == [world.data[CA_CERTIFICATES]]
    assert world.writes() == ["create_secret", "publish_bundle"]


def test_the_empty_secret_of_the_manifests_is_filled(world):
    world.ship()
    first, second = world.replica("a", leads=False), world.replica("b", leads=False)
    first.step()
    assert not first.is_trusted
    assert not first.file.exists()
    start_both_at_once(world, first, second)
    assert world.writes() == ["update_secret", "update_secret"]
    assert len(first.waits) == 1


@pytest.mark.parametrize("leads", [False, True])
def test_a_missing_secret_that_may_not_be_created_is_named(world, caplog, leads):
    replica = world.replica(leads=leads)
    world.fake.fail("write_secret", ClusterError("forbidden", 403), times=2)

    def apply_the_manifests(seconds):
        replica.waits.append(seconds)
        if len(replica.waits) == 2:
            world.ship()

    replica.prepare(apply_the_manifests)
    assert [
        record.error.args[0] for record in caplog.records if record.levelno >= logging.WARNING
    ] == ["Secret hami/self-signed is missing and may not be created: apply the manifests again"]
    assert replica.waits == [RETRY_S] * 2
    assert replica.served() == served(world.data)


def test_the_stored_file_can_be_served_and_is_readable_by_its_owner_only(world):
    replica = world.replica()
    replica.sync()
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(replica.file, replica.file)
    assert stat.S_IMODE(replica.file.stat().st_mode) == 0o600
    assert [path.name for path in replica.file.parent.iterdir()] == ["tls.pem"]
    assert world.data[CA_KEY] not in replica.served()


def test_a_follower_waits_for_the_leader_if_the_secret_has_no_ca(world, caplog):
    world.replica().sync()
    secret = world.fake.secrets[SECRET]
    world.fake.put_secret(
        replace(secret, data={key: secret.data[key] for key in (CERTIFICATE, KEY)})
    )
    follower = world.replica("b", leads=False)
    follower.step()
    assert not follower.is_trusted
    assert follower.served() == served(secret.data)
    assert caplog.text == ""


def test_the_expiry_of_the_serving_certificate_is_reported(world):
    replica = world.replica("b", leads=False)
    assert replica.expiry() is None
    world.replica().sync()
    replica.sync()
    assert replica.expiry() == (START + 90 * DAY).timestamp()


def test_nothing_is_written_while_everything_is_up_to_date(world):
    replica = world.replica()
    replica.sync()
    before, written = replica.file.stat(), world.writes()
    replica.sync()
    assert (replica.file.stat().st_ino, world.writes()) == (before.st_ino, written)


def test_followers_use_the_leaders_certificate_and_write_nothing(world):
    leader, follower = world.replica("a"), world.replica("b", leads=False)
    follower.sync()
    assert world.writes() == []
    leader.sync()
    follower.sync()
    assert follower.served() == leader.served()
    assert world.writes() == ["create_secret", "publish_bundle"]
    world.now += 60 * DAY
    follower.sync()
    leader.sync()
    follower.sync()
    assert follower.served() == leader.served() == served(world.data)
    assert world.writes() == ["create_secret", "publish_bundle", "update_secret"]


def test_two_replicas_that_start_at_the_same_time_share_one_ca(world):
    first, second = world.replica("a", leads=False), world.replica("b", leads=False)
    start_both_at_once(world, first, second)
    assert world.writes() == ["create_secret", "create_secret"]
    assert len(first.waits) == 1


def test_two_replicas_that_both_lead_create_one_certificate(world):
    first, second = world.replica("a"), world.replica("b")
    first.sync()
    world.now += 60 * DAY

    def let_the_other(call):
        if call.method == "write_secret":
            world.fake.on_call = lambda call: None
            second.sync()

    world.fake.on_call = let_the_other
    with pytest.raises(Conflict):
        first.sync()
    first.sync()
    assert first.served() == second.served() == served(world.data)


@cases("foreign", ("removed", b""), ("replaced", b"theirs"))
def test_a_changed_bundle_is_restored(world, foreign):
    replica = world.replica()
    replica.sync()
    world.fake.put_webhook(
        replace(world.fake.webhooks["hook"], webhooks=(replace(SERVICE, bundle=foreign),))
    )
    replica.sync()
    assert world.bundles == [world.data[CA_CERTIFICATES]]


def test_all_webhooks_of_the_configuration_get_the_bundle(tmp_path):
    world = World(
        tmp_path, SERVICE, Webhook(name="other.hami.io", url="https://127.0.0.1:8443/webhook")
    )
    world.replica().sync()
    assert world.bundles == [world.data[CA_CERTIFICATES]] * 2


def test_a_ca_is_rotated_with_an_overlap(world):
    leader, follower = world.replica("a"), world.replica("b", leads=False)
    leader.sync()
    (old,) = world.bundles
    world.change(ca_key=b"")
    before = leader.served()
    leader.sync()
    assert world.bundles == [world.data[CA_CERTIFICATES]]
    assert old in world.data[CA_CERTIFICATES] != old
    world.now += timedelta(minutes=9)
    leader.sync()  # now it has observed that the API server trusts both
    world.now += timedelta(minutes=9)
    leader.sync()
    assert leader.served() == before
    world.now += timedelta(minutes=2)
    leader.sync()
    follower.sync()
    assert leader.served() == follower.served() != before
    assert world.bundles == [world.data[CA_CERTIFICATES]]


def test_a_new_leader_term_restarts_the_overlap(world):
    leader = world.replica()
    leader.sync()
    world.change(ca_key=b"")
    leader.sync()
    leader.sync()
    before = leader.served()
    leader.leads = False
    world.now += timedelta(minutes=20)
    leader.sync()
    leader.leads = True
    leader.sync()
    assert leader.served() == before
    world.now += timedelta(minutes=10)
    leader.sync()
    assert leader.served() != before


def test_a_deleted_secret_is_recreated_and_published(world):
    replica = world.replica()
    replica.sync()
    old = world.data
    del world.fake.secrets[SECRET]
    replica.sync()
    assert world.data[CA_CERTIFICATES] != old[CA_CERTIFICATES]
    assert world.bundles == [world.data[CA_CERTIFICATES]]
    assert replica.served() == served(world.data)


def test_a_secret_deleted_during_an_update_is_a_conflict(world):
    replica = world.replica()
    replica.sync()
    world.now += 60 * DAY
    world.fake.fail("write_secret", NotFound("gone", 404))
    with pytest.raises(Conflict):
        replica.sync()


def test_a_follower_keeps_serving_when_the_secret_is_broken(world):
    leader, follower = world.replica("a"), world.replica("b", leads=False)
    leader.sync()
    follower.sync()
    before = follower.served()
    world.change(certificate=b"nonsense")
    follower.sync()
    assert follower.served() == before
    leader.sync()
    follower.sync()
    assert follower.served() == leader.served() != before


def test_a_certificate_is_created_without_a_webhook_configuration(tmp_path):
    world = World(tmp_path)
    world.replica().sync()
    assert world.writes() == ["create_secret"]


def test_an_unreadable_webhook_configuration_does_not_block_renewal(world):
    replica = world.replica()
    replica.sync()
    before, world.now = replica.served(), world.now + 60 * DAY
    world.fake.fail("webhook_configuration", ClusterError("forbidden", 403))
    with pytest.raises(ClusterError, match="forbidden"):
        replica.sync()
    assert replica.served() == served(world.data) != before


def test_no_replica_is_trusted_before_the_bundle_is_published(world):
    leader, follower = world.replica("a", leads=False), world.replica("b", leads=False)
    leader.prepare(leader.waits.append)
    for replica in (leader, follower):
        replica.step()
        assert not replica.is_trusted
    leader.leads = True
    leader.step()
    assert leader.is_trusted
    assert not follower.is_trusted
    follower.step()
    assert follower.is_trusted
    world.fake.put_webhook(replace(world.fake.webhooks["hook"], webhooks=(SERVICE,)))
    follower.step()
    assert follower.is_trusted  # becoming unready would not help


@pytest.mark.parametrize("leads", [False, True])
def test_a_missing_or_unreadable_webhook_configuration_does_not_block_readiness(world, leads):
    world.replica().sync()
    unreadable, absent = world.replica("b", leads), world.replica("c", leads)
    world.fake.fail("webhook_configuration", ClusterError("forbidden", 403))
    unreadable.step()
    del world.fake.webhooks["hook"]
    absent.step()
    assert unreadable.is_trusted
    assert absent.is_trusted


def test_a_start_waits_for_the_api_server(world):
    replica = world.replica(leads=False)
    world.fake.fail("secret", no_answer(), times=2)
    replica.prepare(replica.waits.append)
    assert replica.waits == [RETRY_S] * 2
    assert replica.served() == served(world.data)


def test_a_restart_without_an_api_server_serves_the_stored_certificate(world):
    world.replica().sync()
    again = world.replica(leads=False)
    world.fake.fail("secret", no_answer())
    again.prepare(again.waits.append)
    assert again.waits == []


def test_a_restart_loads_the_current_certificate(world):
    follower = world.replica("b", leads=False)
    world.replica().sync()
    follower.sync()
    world.now += 60 * DAY
    world.replica().sync()
    follower.prepare(follower.waits.append)
    assert follower.served() == served(world.data)


def test_an_expired_secret_is_renewed_by_the_replica_that_starts(world):
    world.replica().sync()
    world.now += 100 * DAY
    second = world.replica("b", leads=False)
    second.prepare(second.waits.append)
    assert second.served() == served(world.data)
    assert world.writes()[-1] == "update_secret"


def test_an_unwritable_folder_is_named(world):
    (world.folder / "a").write_text("a file")
    replica = world.replica()
    with pytest.raises(HamiError, match=f"certificate file {world.folder}/a"):
        replica.prepare(replica.waits.append)


def test_a_failure_is_logged_once_and_retried(world, caplog):
    caplog.set_level(logging.INFO)
    replica = world.replica()
    world.fake.fail("secret", ClusterError("forbidden", 403), times=3)
    for _ in range(4):
        replica.step()
    assert [record.message for record in caplog.records] == [
        "certificate sync failed",
        "certificates revised",
        "CA bundle published",
    ]
    assert replica.served() == served(world.data)


def test_a_server_that_is_too_busy_is_left_alone_as_long_as_it_asks(world):
    replica = world.replica()
    world.fake.fail("secret", ClusterError("too many requests", 429, 20.0), times=2)
    assert replica.step() == 20.0
    replica.prepare(replica.waits.append)
    assert replica.waits == [20.0]


def test_a_conflict_is_not_logged_as_a_failure(world, caplog):
    replica = world.replica()
    world.fake.fail("write_secret", Conflict("exists", 409))
    replica.step()
    replica.step()
    assert replica.served() == served(world.data)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_replica_whose_writes_always_conflict_waits_longer_and_longer_and_gives_up(world):
    replica = world.replica()
    world.fake.fail("write_secret", Conflict("exists", 409), times=1000)
    with pytest.raises(Conflict):
        replica.prepare(replica.waits.append)
    assert len(replica.waits) == CONFLICTS - 1
    assert all(0 < wait <= RETRY_S for wait in replica.waits)
    assert len(world.fake.calls_of("write_secret")) == CONFLICTS


def test_keys_are_not_shown_in_logs_or_errors(world):
    world.replica().sync()
    assert "data" not in repr(world.fake.secrets[SECRET])
    assert isinstance(world.fake.secrets[SECRET], SecretRecord)


class Predecessor:
    """HAMi's Secret: a certificate and its CA, whose key is lost, trusted by the first webhook. *is_own_ca*: as HAMi's
    chart has cert-manager make it."""

    def __init__(self, world, *, is_own_ca=False, is_trusted=True):
        names = ("scheduler.hami.svc", "127.0.0.1")
        if is_own_ca:
            self.key = rsa.generate_private_key(65_537, 2048)
            self.authority = self.serving = certificate(
                "serving", "serving", self.key, self.key, names=names
            )
        else:
            self.key, authority_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
            self.authority = certificate("nil1", "nil1", authority_key, authority_key, ca=True)
            self.serving = certificate("nil2", "nil1", self.key, authority_key, names=names)
        self.data = {
            "ca": pem(self.authority),
            CERTIFICATE: pem(self.serving),
            KEY: self.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            ),
        }
        world.fake.put_secret(SecretRecord(namespace=SECRET[0], name=PREVIOUS, data=self.data))
        bundle = pem(self.authority) if is_trusted else b""
        other = Webhook(name="more.hami.io", service=SERVICE.service)
        world.fake.put_webhook(
            WebhookConfiguration(
                name="hook", webhooks=(replace(SERVICE, bundle=bundle), other), resource_version=""
            )
        )
        world.ship()


def certificate(subject, issuer, key, signer, *, names=(), ca=False):
    """As kube-webhook-certgen makes them: valid for a hundred years, addresses among the DNS names."""
    first, second = (
        x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, name)])
        for name in (issuer, subject)
    )
    made = x509.CertificateBuilder(
        first,
        second,
        key.public_key(),
        x509.random_serial_number(),
        START - DAY,
        START + 36_500 * DAY,
    )
    made = made.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
    if names:
        made = made.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
    return made.sign(signer, hashes.SHA256())


def pem(one):
    return one.public_bytes(serialization.Encoding.PEM)


def bundled(world):
    return [x509.load_pem_x509_certificates(bundle) for bundle in world.bundles]


@cases("is_own_ca", ("of HAMi's chart", False), ("of cert-manager", True))
def test_the_certificate_of_a_predecessor_is_served_until_ours_is_trusted(world, is_own_ca):
    """A replica is ready while the predecessor still leads, and API servers trust what is served at every moment."""
    before = Predecessor(world, is_own_ca=is_own_ca)
    replica = world.replica(leads=False)
    replica.prepare(replica.waits.append)
    replica.sync()
    assert replica.is_trusted
    assert replica.served() == before.data[CERTIFICATE] + before.data[KEY]
    assert world.bundles == [pem(before.authority), b""]
    replica.leads = True
    replica.sync()
    ours, theirs = x509.load_pem_x509_certificates(world.data[CA_CERTIFICATES])
    assert theirs == before.authority
    assert bundled(world) == [[ours, theirs]] * 2
    for wait in (timedelta(), LIFETIMES.overlap / 2):
        world.now += wait
        replica.sync()
        assert replica.served() == before.data[CERTIFICATE] + before.data[KEY]
    world.now += LIFETIMES.overlap / 2
    replica.sync()
    served_now = x509.load_pem_x509_certificate(replica.served())
    served_now.verify_directly_issued_by(ours)
    assert bundled(world) == [[ours, theirs]] * 2
    assert world.fake.secrets[SECRET[0], PREVIOUS].data == before.data


def test_the_ca_of_a_predecessor_is_trusted_while_its_secret_exists(world):
    """It can come back at any time, since it serves the certificate in its Secret."""
    before = Predecessor(world)
    replica = world.replica()
    for days in (0, 1, 60, 120, 2000, 4000):
        world.now = START + days * DAY
        replica.sync()
        assert all(before.authority in authorities for authorities in bundled(world))
    world.fake.secrets.pop((SECRET[0], PREVIOUS))
    world.now += 60 * DAY
    replica.sync()
    assert not any(before.authority in authorities for authorities in bundled(world))


def test_a_predecessor_that_came_back_is_replaced_again(world):
    """With a new Secret, after Helm has removed ours; the webhooks trust our former CA as well."""
    before = Predecessor(world)
    world.replica().sync()
    world.ship()
    replica = world.replica("b", leads=False)
    replica.prepare(replica.waits.append)
    replica.sync()
    assert replica.is_trusted
    assert replica.served() == before.data[CERTIFICATE] + before.data[KEY]
    assert before.authority in x509.load_pem_x509_certificates(world.data[CA_CERTIFICATES])


def test_a_secret_that_a_returning_predecessor_has_deleted_is_not_created_again(world):
    """The role of that program may permit it, but Helm would refuse to upgrade to us later."""
    Predecessor(world)
    replica = world.replica()
    replica.sync()
    world.fake.secrets.pop(SECRET)
    before, bundles = replica.served(), world.bundles
    with pytest.raises(
        ClusterError, match="Secret hami/self-signed .* deleted: .* with the Secret tls is restored"
    ):
        replica.sync()
    assert SECRET not in world.fake.secrets
    assert (replica.served(), world.bundles) == (before, bundles)


def test_a_previous_certificate_that_nobody_trusts_is_not_served(world):
    before = Predecessor(world, is_trusted=False)
    replica = world.replica()
    replica.prepare(replica.waits.append)
    replica.sync()
    assert before.data[CERTIFICATE] not in replica.served()
    assert len(bundled(world)[0]) == 1
    assert replica.is_trusted


def test_a_predecessor_is_not_given_up_while_the_configuration_cannot_be_read(world):
    """Only it tells whether the previous certificate is trusted."""
    before = Predecessor(world)
    world.fake.fail("webhook_configuration", no_answer(), times=2)
    replica = world.replica(leads=False)
    replica.prepare(replica.waits.append)
    assert replica.waits == [RETRY_S] * 2
    assert replica.served() == before.data[CERTIFICATE] + before.data[KEY]
