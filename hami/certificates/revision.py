"""Decides when the self-signed CA and the serving certificate are renewed, and signs them. `manager` stores them.

One Secret holds everything: ``ca.crt`` all trusted CAs (newest first), ``ca.key`` the key of the newest CA, ``tls.crt``
and ``tls.key`` the serving certificate. A replaced CA stays trusted, and a certificate of the new CA is served only
after the API server has trusted the new CA for a while. So clients trust the serving certificate at every moment. Keys
of older CAs are not kept.

A previous Secret, of another program, is treated like a replaced CA: its certificate is served first, and its CA stays
trusted while the Secret exists, since that program may come back.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.codec.times import render_time

CA_CERTIFICATES, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
BACKDATE = timedelta(hours=2)
"""Certificates are valid from this long before now: an API server accepts them although our clock is so far ahead, and
they are not replaced when it is set back."""
MAX_AUTHORITIES = 5  # keeps the Secret small when its contents are broken again and again

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetimes:
    """Lifetimes of new certificates. Both are renewed after two thirds of theirs."""

    serving: timedelta = timedelta(days=90)
    authority: timedelta = timedelta(days=3650)

    @property
    def overlap(self) -> timedelta:
        """Time for which API servers trust a new CA before one of its certificates is served."""
        return min(timedelta(minutes=10), self.serving / 9)


@dataclass(frozen=True, slots=True)
class PublishedBundles:
    """The CA bundles (PEM) of all webhooks, observed without a change *since* then. Empty if there are no webhooks."""

    bundles: tuple[bytes, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class Revision:
    """New data of the Secret, and the reasons for the change."""

    data: Mapping[str, bytes]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _KeyPair:
    certificate: x509.Certificate
    key: _Key


def adopt(
    data: Mapping[str, bytes],
    previous: Mapping[str, bytes],
    bundles: Iterable[bytes],
    now: datetime,
) -> Mapping[str, bytes]:
    """Returns *data*, begun with the certificate of the *previous* Secret if *data* has none and API servers, which
    have the CA *bundles*, trust that one. `revise` completes it."""
    if usable_until(data, now) is not None or usable_until(previous, now) is None:
        return data
    serving = _serving(previous)
    authorities = [
        authority
        for bundle in bundles
        for authority in _load(bundle)
        if _has_signed(authority, serving)
    ]
    if not authorities:
        return data
    certificate = {key: previous[key] for key in (CERTIFICATE, KEY)}
    return {**data, **certificate, CA_CERTIFICATES: _pem(dict.fromkeys(authorities))}


def trusts(bundle: bytes, data: Mapping[str, bytes]) -> bool:
    """Reports whether a CA of *bundle* has signed the serving certificate in *data*."""
    serving = _serving(data)
    return any(_has_signed(authority, serving) for authority in _load(bundle))


def revise(
    data: Mapping[str, bytes],
    *,
    names: Collection[str],
    default: Collection[str],
    published: PublishedBundles | None,
    now: datetime,
    lifetimes: Lifetimes,
    previous: Mapping[str, bytes] | None = None,
) -> Revision | None:
    """Returns the Secret's new data, or None if *data* needs no change. Unknown keys of *data* are kept.

    *names*: DNS names and addresses of the server. If empty, the names of the current certificate are used, or else the
    *default* names. *published*: None if the trusted CAs are unknown; then only certificates that the newest CA has
    signed are renewed. *previous*: the data of a Secret whose certificate stays trusted.
    """
    authorities = _load(data.get(CA_CERTIFICATES, b""))
    # A CA that is not valid yet is kept: our own clock may be wrong.
    trusted = [certificate for certificate in authorities if now < certificate.not_valid_after_utc]
    reasons = []
    signer, problem = _signer(data, trusted, now)
    if signer is None:
        signer = _sign(f"hami CA of {render_time(now)}", None, now, now + lifetimes.authority)
        reasons.append(f"new CA: {problem}")
    serving = _serving(data)
    names = names or _names(serving) or default
    trusts_signer = _is_trusted(signer.certificate, published, now, lifetimes)
    reason = _renewal_reason(serving, signer, trusted, names, now, trusts_signer=trusts_signer)
    changed = {}
    if reason:
        made = _make_serving(signer, names, now, lifetimes)
        serving, changed = (
            made.certificate,
            {CERTIFICATE: _pem((made.certificate,)), KEY: _key_pem(made.key)},
        )
        reasons.append(f"new certificate: {reason}")
    older = [certificate for certificate in trusted if certificate != signer.certificate]
    needed = (serving, _serving(previous or {}))
    kept = [
        certificate
        for certificate in older
        if now < _issued_at(signer.certificate) + lifetimes.serving
        or any(_has_signed(certificate, served) for served in needed)
    ]
    if len(kept) < len(authorities) - 1:
        reasons.append("removed an old CA: no valid certificate depends on it")
    if not reasons:
        return None
    bundle = _pem((signer.certificate, *kept[: MAX_AUTHORITIES - 1]))
    return Revision(
        {**data, **changed, CA_CERTIFICATES: bundle, CA_KEY: _key_pem(signer.key)}, tuple(reasons)
    )


def usable_until(data: Mapping[str, bytes], now: datetime) -> datetime | None:
    """Returns when the serving certificate in *data* expires; None unless it is valid at *now* and has its key."""
    serving = _serving(data)
    return serving.not_valid_after_utc if serving is not None and _is_valid(serving, now) else None


def _signer(
    data: Mapping[str, bytes], trusted: Iterable[x509.Certificate], now: datetime
) -> tuple[_KeyPair | None, str]:
    """Returns the CA that signs, or the reason for a new one."""
    key = _key(data.get(CA_KEY, b""))
    if key is None:
        return None, f"{CA_KEY} is missing or cannot be read"
    certificate = next(
        (
            candidate
            for candidate in trusted
            if candidate.public_key() == key.public_key() and _is_valid(candidate, now)
        ),
        None,
    )
    if certificate is None:
        return None, f"{CA_CERTIFICATES} has no valid certificate for {CA_KEY}"
    if _is_due(certificate, now):
        return None, f"the current one expires at {certificate.not_valid_after_utc:%F %T}"
    return _KeyPair(certificate, key), ""


def _renewal_reason(
    serving: x509.Certificate | None,
    signer: _KeyPair,
    trusted: Iterable[x509.Certificate],
    names: Collection[str],
    now: datetime,
    *,
    trusts_signer: bool,
) -> str:
    """Returns why *serving* must be replaced at once, or should and can be replaced; empty if it stays.

    *trusts_signer*: whether the API server trusts *signer*, so that its certificates may be served.
    """
    if serving is None:
        return f"{CERTIFICATE} or {KEY} is missing or cannot be read, or they do not match"
    if not _is_valid(serving, now):
        return f"the current one expired at {serving.not_valid_after_utc:%F %T}"
    if not any(_has_signed(certificate, serving) for certificate in trusted):
        return "no trusted CA has signed the current one"
    if missing := set(names) - _names(serving):
        return f"the current one is not valid for {', '.join(sorted(missing))}"
    if not _has_signed(signer.certificate, serving):
        return "its CA has been replaced" if trusts_signer else ""
    return (
        f"the current one expires at {serving.not_valid_after_utc:%F %T}"
        if _is_due(serving, now)
        else ""
    )


def _is_trusted(
    authority: x509.Certificate,
    published: PublishedBundles | None,
    now: datetime,
    lifetimes: Lifetimes,
) -> bool:
    if published is None or now - published.since < lifetimes.overlap:
        return False
    return all(authority in _load(bundle) for bundle in published.bundles)


def _make_serving(
    signer: _KeyPair, names: Collection[str], now: datetime, lifetimes: Lifetimes
) -> _KeyPair:
    """Returns a new serving certificate, which does not outlive its CA."""
    expiry = min(now + lifetimes.serving, signer.certificate.not_valid_after_utc)
    return _sign(
        "hami-scheduler",
        signer,
        now,
        expiry,
        x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
    )


def _sign(
    common_name: str,
    signer: _KeyPair | None,
    now: datetime,
    expiry: datetime,
    *extensions: x509.ExtensionType,
) -> _KeyPair:
    """Returns a new key and its certificate: a self-signed CA if there is no *signer*."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    is_authority = signer is None
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = x509.CertificateBuilder(
        subject_name=subject,
        issuer_name=signer.certificate.subject if signer else subject,
        public_key=key.public_key(),
        serial_number=x509.random_serial_number(),
        not_valid_before=now - BACKDATE,
        not_valid_after=expiry,
    )
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    builder = builder.add_extension(constraints, critical=True).add_extension(usage, critical=True)
    identifier = (
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
        if signer
        else x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    )
    for extension in (*extensions, identifier):
        builder = builder.add_extension(extension, critical=False)
    return _KeyPair(builder.sign(signer.key if signer else key, hashes.SHA256()), key)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate | None) -> set[str]:
    if certificate is None:
        return set()
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
    }


def _issued_at(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc + BACKDATE


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    issued = _issued_at(certificate)
    return now >= issued + (certificate.not_valid_after_utc - issued) * 2 / 3


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate | None) -> bool:
    if certificate is None:
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _load(pem: bytes) -> list[x509.Certificate]:
    """Returns the certificates in *pem*; none if any of them cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _serving(data: Mapping[str, bytes]) -> x509.Certificate | None:
    """Returns the serving certificate; None if it or its key cannot be read, or they do not match."""
    certificates, key = _load(data.get(CERTIFICATE, b"")), _private_key(data.get(KEY, b""))
    if not certificates or key is None or certificates[0].public_key() != key.public_key():
        return None
    return certificates[0]


def _key(pem: bytes) -> _Key | None:
    key = _private_key(pem)
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _private_key(pem: bytes) -> PrivateKeyTypes | None:
    try:
        return serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(
        certificate.public_bytes(serialization.Encoding.PEM) for certificate in certificates
    )


def _key_pem(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
