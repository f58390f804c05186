"""What is to be done about the CA and the serving certificate, by the clock."""

import random
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from hami.certificates.revision import (
    BACKDATE, CA_CERTIFICATES, CA_KEY, CERTIFICATE, KEY, MOST_AUTHORITIES, Published, Terms, is_usable, revise,
)

START = datetime(2026, 8, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MINUTE = timedelta(minutes=1)
NAME = "hami-scheduler.hami.svc"
TERMS = Terms()


def look(data, now=START, *, published=None, names=(NAME,), terms=TERMS):
    return revise(data, names=names, default=("default.svc",), published=published, now=now, terms=terms)


def made(now=START, **options):
    return look({}, now, **options).data


def serving(data):
    return x509.load_pem_x509_certificate(data[CERTIFICATE])


def authorities(data):
    return x509.load_pem_x509_certificates(data[CA_CERTIFICATES])


def signed_by(data):
    """Which CA of the bundle has signed what is served."""
    return [place for place, one in enumerate(authorities(data)) if has_signed(one, serving(data))]


def has_signed(authority, certificate):
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError):  # ValueError: another name
        return False
    return True


def known(data, since):
    return Published((data[CA_CERTIFICATES],), since)


def test_the_first_start_makes_a_ca_and_a_certificate_of_it():
    data = made()
    certificate, (authority,) = serving(data), authorities(data)
    certificate.verify_directly_issued_by(authority)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert certificate.not_valid_after_utc == START + 90 * DAY
    assert authority.not_valid_after_utc == START + 3650 * DAY
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert isinstance(certificate.public_key().curve, ec.SECP256R1)
    assert is_usable(data, START)


def test_what_is_right_stays():
    data = made()
    assert look(data) is None
    assert look(data, START + 59 * DAY, published=known(data, START)) is None


def test_no_more_is_said_of_names_and_addresses_than_they_are():
    data = made(names=("127.0.0.1", "::1", NAME))
    names = serving(data).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(map(str, names.get_values_for_type(x509.IPAddress))) == {"127.0.0.1", "::1"}
    assert look(data, names=("127.0.0.1", "::1", NAME)) is None


def test_a_certificate_is_renewed_at_two_thirds_by_the_same_ca():
    data = made()
    revision = look(data, START + 60 * DAY)
    assert authorities(revision.data) == authorities(data)
    assert serving(revision.data).not_valid_after_utc == START + 150 * DAY
    assert serving(revision.data).public_key() != serving(data).public_key()
    assert revision.reasons == ("new certificate: the one that is served ends on 2026-11-19 12:00:00",)


def test_an_expired_certificate_is_replaced():
    data = made()
    assert not is_usable(data, START + 91 * DAY)
    assert is_usable(look(data, START + 91 * DAY).data, START + 91 * DAY)


def test_a_certificate_from_the_future_is_replaced():
    data = made(START + DAY)
    assert not is_usable(data, START)
    assert is_usable(look(data).data, START)


def test_a_replica_whose_clock_is_behind_takes_no_trust_from_the_others_ca():
    data = made(START + DAY)
    revised = look(data).data
    assert is_usable(revised, START) and signed_by(revised) == [0]
    assert authorities(revised)[1:] == authorities(data)


def due():
    """A Secret at two thirds of its CA's time, with a fresh certificate; and the moment."""
    now = START + 3650 * DAY * 2 / 3
    data = look(made(), now - DAY).data
    return data, now


def test_a_new_ca_is_trusted_before_anything_of_it_is_served():
    data, now = due()
    overlap = look(data, now, published=known(data, START)).data
    assert authorities(overlap)[1:] == authorities(data) and overlap[CA_KEY] != data[CA_KEY]
    assert (overlap[CERTIFICATE], overlap[KEY]) == (data[CERTIFICATE], data[KEY])
    for published in (None, known(data, START), known(overlap, now), known(overlap, now - 9 * MINUTE)):
        assert look(overlap, now, published=published) is None
    half = Published((overlap[CA_CERTIFICATES], data[CA_CERTIFICATES]), START)
    assert look(overlap, now, published=half) is None
    moved = look(overlap, now + 10 * MINUTE, published=known(overlap, now)).data
    assert authorities(moved) == authorities(overlap) and signed_by(moved) == [0]


def test_where_nobody_asks_a_new_ca_serves_after_a_while():
    data, now = due()
    overlap = look(data, now).data
    assert signed_by(look(overlap, now + 10 * MINUTE, published=Published((), now)).data) == [0]


def test_the_old_ca_is_trusted_for_as_long_as_what_it_has_signed():
    data, now = due()
    overlap = look(data, now).data
    moved = look(overlap, now + 10 * MINUTE, published=known(overlap, now)).data
    later = look(moved, now + 60 * DAY + 10 * MINUTE).data
    assert len(authorities(later)) == 2
    assert look(later, now + 89 * DAY) is None
    assert authorities(look(later, now + 90 * DAY).data) == authorities(overlap)[:1]


def test_an_old_ca_is_kept_while_its_certificate_is_served():
    """Nobody can say what the API server trusts: the old certificate runs to its end, then there is no choice."""
    data, now = due()
    overlap = look(data, now).data
    end = serving(overlap).not_valid_after_utc
    assert look(overlap, end - MINUTE) is None
    assert signed_by(look(overlap, end).data) == [0]


def test_no_certificate_outlives_its_ca():
    terms = Terms(serving=90 * DAY, authority=91 * DAY)
    data = made(terms=terms)
    later = look(data, START + 60 * DAY, terms=terms).data
    assert serving(later).not_valid_after_utc == authorities(later)[-1].not_valid_after_utc == START + 91 * DAY


def test_an_expired_ca_and_what_it_signed_are_replaced_at_once():
    data = made(terms=Terms(serving=9 * DAY, authority=9 * DAY))
    later = look(data, START + 10 * DAY).data
    assert signed_by(later) == [0] and len(authorities(later)) == 1
    assert is_usable(later, START + 10 * DAY)


OTHER = made()


def rsa_key():
    return rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


@pytest.mark.parametrize("broken", [
    {CA_KEY: b""}, {CA_KEY: b"nonsense"}, {CA_KEY: OTHER[CA_KEY]}, {CA_KEY: rsa_key()},
], ids=["no key", "nonsense", "another key", "RSA"])
def test_a_ca_without_its_key_is_replaced_with_an_overlap(broken):
    data = made() | broken
    revised = look(data).data
    assert len(authorities(revised)) == 2 and signed_by(revised) == [1]
    assert revised[CERTIFICATE] == data[CERTIFICATE]
    assert look(revised) is None


@pytest.mark.parametrize("broken", [
    {CERTIFICATE: b""}, {KEY: b""}, {CERTIFICATE: b"nonsense"}, {KEY: b"nonsense"}, {KEY: OTHER[KEY]},
    {CERTIFICATE: OTHER[CERTIFICATE], KEY: OTHER[KEY]},
], ids=["no certificate", "no key", "nonsense", "nonsense key", "another key", "of another CA"])
def test_a_certificate_that_cannot_be_served_is_replaced_at_once(broken):
    data = made()
    revised = look(data | broken).data
    assert (revised[CA_CERTIFICATES], revised[CA_KEY]) == (data[CA_CERTIFICATES], data[CA_KEY])
    assert serving(revised) not in (serving(data), serving(OTHER))
    assert look(revised) is None


@pytest.mark.parametrize("broken", [{CA_CERTIFICATES: b""}, {CA_CERTIFICATES: b"nonsense"},
                                    {CA_CERTIFICATES: OTHER[CA_CERTIFICATES], CA_KEY: OTHER[CA_KEY]}],
                         ids=["no CA", "nonsense", "another CA"])
def test_what_no_trusted_ca_has_signed_is_replaced_at_once(broken):
    revised = look(made() | broken).data
    assert signed_by(revised) == [0] and look(revised) is None


def test_what_else_is_in_the_secret_stays():
    assert look({"note": b"ours"}).data["note"] == b"ours"


def test_a_certificate_for_other_names_is_replaced():
    revision = look(made(), names=(NAME, "127.0.0.1"))
    assert revision.reasons == ("new certificate: the one that is served is not for 127.0.0.1",)
    assert look(revision.data, names=("127.0.0.1",)) is None


def test_where_nobody_knows_the_names_they_stay_as_they_were():
    data = made()
    assert look(data, names=()) is None
    assert look(look(data, START + 60 * DAY, names=()).data, START + 60 * DAY) is None
    assert look(made(names=()), names=("default.svc",)) is None


def test_who_breaks_the_secret_again_and_again_does_not_fill_it():
    data = made()
    for _ in range(2 * MOST_AUTHORITIES):
        data = look(data | {CA_KEY: b""}).data
    assert len(authorities(data)) == MOST_AUTHORITIES
    assert is_usable(data, START) and any(signed_by(data))  # the newest is not served yet


def test_the_overlap_fits_into_what_is_left_when_a_certificate_is_renewed():
    for terms in (TERMS, Terms(serving=timedelta(seconds=20))):
        assert terms.overlap <= min(terms.serving / 3, 10 * MINUTE)


def test_certificates_are_valid_a_little_before_they_are_made():
    assert serving(made()).not_valid_before_utc == START - BACKDATE


@pytest.mark.parametrize("seed", range(6))
def test_at_every_moment_what_is_served_is_trusted(seed):
    """Years of looks at odd moments, by leaders that come and go: never a certificate that the API server, which has
    the bundle of the last look but one, does not trust; never two CAs where one would do."""
    rng = random.Random(seed)
    terms = Terms(serving=30 * DAY, authority=200 * DAY)
    data, now, since = made(terms=terms), START, START
    published = data[CA_CERTIFICATES]
    for _ in range(300):
        now += rng.choice([MINUTE, 6 * MINUTE, DAY, 3 * DAY])
        if rng.random() < 0.2:
            since = now
        revision = look(data, now, published=rng.choice([None, Published((published,), since)]), terms=terms)
        data = revision.data if revision else data
        assert is_usable(data, now)
        assert any(has_signed(one, serving(data)) for one in x509.load_pem_x509_certificates(published))
        assert len(authorities(data)) <= 2
        if published != data[CA_CERTIFICATES]:
            published, since = data[CA_CERTIFICATES], now


def test_a_ca_of_others_in_the_secret_signs_nothing():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "theirs")])
    theirs = x509.CertificateBuilder(name, name, key.public_key(), 1, START - DAY, START + DAY)
    theirs = theirs.sign(key, hashes.SHA256())
    data = made()
    data = data | {CA_CERTIFICATES: theirs.public_bytes(serialization.Encoding.PEM) + data[CA_CERTIFICATES]}
    assert look(data) is None and signed_by(look(data | {KEY: b""}).data) == [0]
