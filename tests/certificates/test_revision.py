"""Renewal of the CA and the serving certificate over time."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given, settings
from hypothesis.strategies import randoms

from hami.certificates.revision import (
    BACKDATE,
    CA_CERTIFICATES,
    CA_KEY,
    CERTIFICATE,
    KEY,
    MAX_AUTHORITIES,
    Lifetimes,
    PublishedBundles,
    revise,
    usable_until,
)
from testing.cases import cases

START = datetime(2026, 8, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
NAME = "hami-scheduler.hami.svc"
LIFETIMES = Lifetimes()


def revised(data, now=START, *, published=None, names=(NAME,), lifetimes=LIFETIMES):
    return revise(
        data,
        names=names,
        default=("default.svc",),
        published=published,
        now=now,
        lifetimes=lifetimes,
    )


def made(now=START, **options):
    return revised({}, now, **options).data


def serving(data):
    return x509.load_pem_x509_certificate(data[CERTIFICATE])


def authorities(data):
    return x509.load_pem_x509_certificates(data[CA_CERTIFICATES])


def signed_by(data):
    """The positions of the CAs in the bundle that signed the serving certificate."""
    return [place for place, one in enumerate(authorities(data)) if has_signed(one, serving(data))]


def has_signed(authority, certificate):
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):  # ValueError: another name
        return False
    return True


def published_since(data, since):
    return PublishedBundles((data[CA_CERTIFICATES],), since)


def test_the_first_start_creates_a_ca_and_a_certificate():
    data = made()
    certificate, (authority,) = serving(data), authorities(data)
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert certificate.not_valid_after_utc == START + 90 * DAY
    assert authority.not_valid_after_utc == START + 3650 * DAY
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(certificate.public_key().curve, ec.SECP256R1)
    assert usable_until(data, START)


def test_valid_certificates_are_kept():
    data = made()
    assert revised(data) is None
    assert revised(data, START + 59 * DAY, published=published_since(data, START)) is None


def test_names_and_addresses_are_subject_alternative_names():
    data = made(names=("127.0.0.1", "::1", NAME))
    names = serving(data).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(map(str, names.get_values_for_type(x509.IPAddress))) == {"127.0.0.1", "::1"}
    assert revised(data, names=("127.0.0.1", "::1", NAME)) is None


def test_a_certificate_is_renewed_by_the_same_ca_after_two_thirds_of_its_lifetime():
    data = made()
    revision = revised(data, START + 60 * DAY)
    assert authorities(revision.data) == authorities(data)
    assert serving(revision.data).not_valid_after_utc == START + 150 * DAY
    assert serving(revision.data).public_key() != serving(data).public_key()
    assert revision.reasons == ("new certificate: the current one expires at 2026-11-19 12:00:00",)


def test_an_expired_certificate_is_replaced():
    data = made()
    assert not usable_until(data, START + 91 * DAY)
    assert usable_until(revised(data, START + 91 * DAY).data, START + 91 * DAY)


def test_a_certificate_from_the_future_is_replaced():
    data = made(START + DAY)
    assert not usable_until(data, START)
    assert usable_until(revised(data).data, START)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_time_of_day_that_jumps_by_an_hour_replaces_nothing(hours):
    """Nor does an API server whose clock is right refuse a certificate that was made meanwhile."""
    data, other = made(), made(START + timedelta(hours=hours))
    assert (
        revised(data, START + timedelta(hours=hours), published=published_since(data, START))
        is None
    )
    assert usable_until(other, START)
    assert revised(other, published=published_since(other, START)) is None


def test_a_replica_with_a_slow_clock_keeps_the_other_replicas_ca():
    data = made(START + DAY)
    renewed = revised(data).data
    assert usable_until(renewed, START)
    assert signed_by(renewed) == [0]
    assert authorities(renewed)[1:] == authorities(data)


def due():
    """A Secret whose CA is due for renewal, with a fresh certificate, and the time."""
    now = START + 3650 * DAY * 2 / 3
    data = revised(made(), now - DAY).data
    return data, now


def test_a_new_ca_is_trusted_before_its_certificates_are_served():
    data, now = due()
    overlap = revised(data, now, published=published_since(data, START)).data
    assert authorities(overlap)[1:] == authorities(data)
    assert overlap[CA_KEY] != data[CA_KEY]
    assert (overlap[CERTIFICATE], overlap[KEY]) == (data[CERTIFICATE], data[KEY])
    for published in (
        None,
        published_since(data, START),
        published_since(overlap, now),
        published_since(overlap, now - 9 * MINUTE),
    ):
        assert revised(overlap, now, published=published) is None
    half = PublishedBundles((overlap[CA_CERTIFICATES], data[CA_CERTIFICATES]), START)
    assert revised(overlap, now, published=half) is None
    moved = revised(overlap, now + 10 * MINUTE, published=published_since(overlap, now)).data
    assert authorities(moved) == authorities(overlap)
    assert signed_by(moved) == [0]


def test_without_webhooks_a_new_ca_serves_after_the_overlap():
    data, now = due()
    overlap = revised(data, now).data
    assert signed_by(
        revised(overlap, now + 10 * MINUTE, published=PublishedBundles((), now)).data
    ) == [0]


def test_an_old_ca_is_trusted_as_long_as_its_certificates_are_valid():
    data, now = due()
    overlap = revised(data, now).data
    moved = revised(overlap, now + 10 * MINUTE, published=published_since(overlap, now)).data
    later = revised(moved, now + 60 * DAY + 10 * MINUTE).data
    assert len(authorities(later)) == 2
    assert revised(later, now + 89 * DAY) is None
    assert authorities(revised(later, now + 90 * DAY).data) == authorities(overlap)[:1]


def test_an_old_ca_is_kept_while_its_certificate_is_served():
    """Without knowing what the API server trusts, the old certificate is served until it expires."""
    data, now = due()
    overlap = revised(data, now).data
    end = serving(overlap).not_valid_after_utc
    assert revised(overlap, end - MINUTE) is None
    assert signed_by(revised(overlap, end).data) == [0]


def test_no_certificate_outlives_its_ca():
    lifetimes = Lifetimes(serving=90 * DAY, authority=91 * DAY)
    data = made(lifetimes=lifetimes)
    later = revised(data, START + 60 * DAY, lifetimes=lifetimes).data
    assert (
        serving(later).not_valid_after_utc
        == authorities(later)[-1].not_valid_after_utc
        == START + 91 * DAY
    )


def test_an_expired_ca_and_its_certificate_are_replaced_at_once():
    data = made(lifetimes=Lifetimes(serving=9 * DAY, authority=9 * DAY))
    later = revised(data, START + 10 * DAY).data
    assert signed_by(later) == [0]
    assert len(authorities(later)) == 1
    assert usable_until(later, START + 10 * DAY)


OTHER = made()


def rsa_key():
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


@cases(
    "broken",
    ("no key", {CA_KEY: b""}),
    ("nonsense", {CA_KEY: b"nonsense"}),
    ("another key", {CA_KEY: OTHER[CA_KEY]}),
    ("RSA", {CA_KEY: rsa_key()}),
)
def test_a_ca_without_its_key_is_replaced_with_an_overlap(broken):
    data = made() | broken
    renewed = revised(data).data
    assert len(authorities(renewed)) == 2
    assert signed_by(renewed) == [1]
    assert renewed[CERTIFICATE] == data[CERTIFICATE]
    assert revised(renewed) is None


@cases(
    "broken",
    ("no certificate", {CERTIFICATE: b""}),
    ("no key", {KEY: b""}),
    ("nonsense", {CERTIFICATE: b"nonsense"}),
    ("nonsense key", {KEY: b"nonsense"}),
    ("another key", {KEY: OTHER[KEY]}),
    ("of another CA", {CERTIFICATE: OTHER[CERTIFICATE], KEY: OTHER[KEY]}),
)
def test_an_unusable_certificate_is_replaced_at_once(broken):
    data = made()
    renewed = revised(data | broken).data
    assert (renewed[CA_CERTIFICATES], renewed[CA_KEY]) == (data[CA_CERTIFICATES], data[CA_KEY])
    assert serving(renewed) not in (serving(data), serving(OTHER))
    assert revised(renewed) is None


@cases(
    "broken",
    ("no CA", {CA_CERTIFICATES: b""}),
    ("nonsense", {CA_CERTIFICATES: b"nonsense"}),
    ("another CA", {CA_CERTIFICATES: OTHER[CA_CERTIFICATES], CA_KEY: OTHER[CA_KEY]}),
)
def test_a_certificate_of_an_untrusted_ca_is_replaced_at_once(broken):
    renewed = revised(made() | broken).data
    assert signed_by(renewed) == [0]
    assert revised(renewed) is None


def test_unknown_keys_of_the_secret_are_kept():
    assert revised({"note": b"ours"}).data["note"] == b"ours"


def test_a_certificate_for_other_names_is_replaced():
    revision = revised(made(), names=(NAME, "127.0.0.1"))
    assert revision.reasons == ("new certificate: the current one is not valid for 127.0.0.1",)
    assert revised(revision.data, names=("127.0.0.1",)) is None


def test_unknown_names_are_taken_from_the_current_certificate():
    data = made()
    assert revised(data, names=()) is None
    assert revised(revised(data, START + 60 * DAY, names=()).data, START + 60 * DAY) is None
    assert revised(made(names=()), names=("default.svc",)) is None


def test_the_number_of_cas_is_bounded():
    data = made()
    for _ in range(2 * MAX_AUTHORITIES):
        data = revised(data | {CA_KEY: b""}).data
    assert len(authorities(data)) == MAX_AUTHORITIES
    assert usable_until(data, START)
    assert any(signed_by(data))


def test_the_overlap_fits_into_the_remaining_lifetime_at_renewal():
    for lifetimes in (LIFETIMES, Lifetimes(serving=timedelta(seconds=20))):
        assert lifetimes.overlap <= min(lifetimes.serving / 3, 10 * MINUTE)


def test_certificates_are_backdated():
    assert serving(made()).not_valid_before_utc == START - BACKDATE


@settings(max_examples=6)
@given(rng=randoms(use_true_random=True))
def test_the_serving_certificate_is_trusted_at_every_moment(rng):
    """Revisions at random moments over years, by changing leaders. The API server, which trusts the bundle before the
    last one, always trusts the serving certificate, and there are never more than two CAs."""
    lifetimes = Lifetimes(serving=30 * DAY, authority=200 * DAY)
    data, now, since = made(lifetimes=lifetimes), START, START
    published = data[CA_CERTIFICATES]
    for _ in range(300):
        now += rng.choice([MINUTE, 6 * MINUTE, DAY, 3 * DAY])
        if rng.random() < 0.2:
            since = now
        observed = rng.choice([None, PublishedBundles((published,), since)])
        revision = revised(data, now, published=observed, lifetimes=lifetimes)
        data = revision.data if revision else data
        assert usable_until(data, now)
        assert any(
            has_signed(one, serving(data)) for one in x509.load_pem_x509_certificates(published)
        )
        assert len(authorities(data)) <= 2
        if published != data[CA_CERTIFICATES]:
            published, since = data[CA_CERTIFICATES], now


def test_a_foreign_ca_in_the_secret_signs_nothing():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "theirs")])
    theirs = x509.CertificateBuilder(name, name, key.public_key(), 1, START - DAY, START + DAY)
    theirs = theirs.sign(key, hashes.SHA256())
    data = made()
    data = data | {
        CA_CERTIFICATES: theirs.public_bytes(serialization.Encoding.PEM) + data[CA_CERTIFICATES]
    }
    assert revised(data) is None
    assert signed_by(revised(data | {KEY: b""}).data) == [0]
