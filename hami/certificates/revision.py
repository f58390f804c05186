"""What has to be done about the self-signed CA and the serving certificate. Decides and signs; ``certifier`` stores.

All lies in one Secret: ``ca.crt`` every CA that is to be trusted (newest first), ``ca.key`` the newest one's key,
``tls.crt`` and ``tls.key`` what is served. A CA that is replaced stays trusted, and no certificate of the new one is
served before the API server has had the new one's certificate for a while: at no moment is a certificate served that
somebody does not trust yet, or not any more. A key that is not the newest CA's is kept nowhere.
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
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["CA_CERTIFICATES", "CA_KEY", "CERTIFICATE", "KEY", "Published", "Revision", "Terms", "end_of", "is_usable",
           "revise"]

CA_CERTIFICATES, CA_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
BACKDATE = timedelta(minutes=5)  # clocks differ; certificates are valid from so long before they are made
MOST_AUTHORITIES = 5  # whoever breaks the Secret again and again shall not fill it

_Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How long what is made lasts. Both are made anew at two thirds of that."""

    serving: timedelta = timedelta(days=90)
    authority: timedelta = timedelta(days=3650)

    @property
    def overlap(self) -> timedelta:
        """How long the API servers are to have a new CA before a certificate of it is served."""
        return min(timedelta(minutes=10), self.serving / 9)


@dataclass(frozen=True, slots=True)
class Published:
    """The CA bundles (PEM) of all webhooks, and since when they are known to be these. No webhooks: nobody asks."""

    bundles: tuple[bytes, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class Revision:
    """What the Secret shall hold from now on, and why."""

    data: Mapping[str, bytes]
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Authority:
    certificate: x509.Certificate
    key: _Key


def revise(data: Mapping[str, bytes], *, names: Collection[str], default: Collection[str], published: Published | None,
           now: datetime, terms: Terms) -> Revision | None:
    """What the Secret shall hold in place of *data*; ``None`` when that is right.

    *names*: DNS names and addresses by which the server is called; empty when nobody knows: then they are those of the
    certificate that there is, or else the *default* ones. *published*: ``None`` when nobody knows what the API server
    trusts; then only what the newest CA itself has signed is renewed. What else is in *data* stays.
    """
    # one that is not valid yet stays: our clock may be the one that is wrong
    trusted = [certificate for certificate in _certificates(data) if now < certificate.not_valid_after_utc]
    reasons = []
    signer, problem = _signer(data, trusted, now)
    if signer is None:
        signer = _make_authority(now, terms)
        reasons.append(f"new CA: {problem}")
    serving = _serving(data)
    names = names or _names(serving) or default
    objection = _objection(serving, trusted, names, now) or _aging(serving, signer, published, now, terms)
    pair = {CERTIFICATE: data.get(CERTIFICATE, b""), KEY: data.get(KEY, b"")}
    if objection:
        serving, pair = _issue(signer, names, now, terms)
        reasons.append(f"new certificate: {objection}")
    older = [certificate for certificate in trusted if certificate != signer.certificate]
    kept = [certificate for certificate in older
            if now < _made(signer.certificate) + terms.serving or _has_signed(certificate, serving)]
    if len(kept) < len(_certificates(data)) - 1:
        reasons.append("an old CA has signed nothing that is valid still")
    if not reasons:
        return None
    bundle = _pem((signer.certificate, *kept[:MOST_AUTHORITIES - 1]))
    return Revision({**data, **pair, CA_CERTIFICATES: bundle, CA_KEY: _key_pem(signer.key)}, tuple(reasons))


def is_usable(data: Mapping[str, bytes], now: datetime) -> bool:
    """Whether *data* has a certificate that can be served at *now*, with its key."""
    serving = _serving(data)
    return serving is not None and _is_valid(serving, now)


def end_of(data: Mapping[str, bytes]) -> datetime | None:
    """Until when the certificate in *data* is valid; ``None`` if there is none that can be served."""
    serving = _serving(data)
    return None if serving is None else serving.not_valid_after_utc


def _signer(data: Mapping[str, bytes], trusted: Iterable[x509.Certificate],
            now: datetime) -> tuple[_Authority | None, str]:
    """The CA that signs, or why there has to be a new one."""
    key = _key(data.get(CA_KEY, b""))
    if key is None:
        return None, f"{CA_KEY} is missing or cannot be read"
    certificate = next((one for one in trusted if one.public_key() == key.public_key() and _is_valid(one, now)), None)
    if certificate is None:
        return None, f"{CA_CERTIFICATES} has no valid certificate of {CA_KEY}"
    if _is_due(certificate, now):
        return None, f"the one that signs ends on {certificate.not_valid_after_utc:%F %T}"
    return _Authority(certificate, key), ""


def _objection(serving: x509.Certificate | None, trusted: Iterable[x509.Certificate], names: Collection[str],
               now: datetime) -> str:
    """Why *serving* cannot be served at all; empty if it can."""
    if serving is None:
        return f"{CERTIFICATE} or {KEY} is missing or cannot be read, or they do not belong together"
    if not _is_valid(serving, now):
        return f"the one that is served ended on {serving.not_valid_after_utc:%F %T}"
    if not any(_has_signed(certificate, serving) for certificate in trusted):
        return "the one that is served is of no CA that is trusted"
    if missing := set(names) - _names(serving):
        return f"the one that is served is not for {', '.join(sorted(missing))}"
    return ""


def _aging(serving: x509.Certificate | None, signer: _Authority, published: Published | None, now: datetime,
           terms: Terms) -> str:
    """Why another one should be served by and by, and can be now."""
    if not _has_signed(signer.certificate, serving):
        return "its CA has been replaced" if _is_trusted(signer.certificate, published, now, terms) else ""
    if serving is not None and _is_due(serving, now):
        return f"the one that is served ends on {serving.not_valid_after_utc:%F %T}"
    return ""


def _is_trusted(authority: x509.Certificate, published: Published | None, now: datetime, terms: Terms) -> bool:
    if published is None or now - published.since < terms.overlap:
        return False
    return all(authority in _load(bundle) for bundle in published.bundles)


def _make_authority(now: datetime, terms: Terms) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name(f"hami CA of {now:%Y-%m-%dT%H:%M:%SZ}")
    builder = _builder(name, name, key, now, now + terms.authority).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True).add_extension(
        _usage(signs_certificates=True), critical=True).add_extension(
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _Authority(builder.sign(key, hashes.SHA256()), key)


def _issue(signer: _Authority, names: Collection[str], now: datetime,
           terms: Terms) -> tuple[x509.Certificate, dict[str, bytes]]:
    """A serving certificate, and the same with its key as the Secret has them. It never outlives its CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    until = min(now + terms.serving, signer.certificate.not_valid_after_utc)
    builder = _builder(_common_name("hami-scheduler"), signer.certificate.subject, key, now, until).add_extension(
        x509.SubjectAlternativeName([_general_name(name) for name in sorted(names)]), critical=False).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True).add_extension(
        _usage(signs_certificates=False), critical=True).add_extension(
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False).add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key()), critical=False)
    certificate = builder.sign(signer.key, hashes.SHA256())
    return certificate, {CERTIFICATE: _pem((certificate,)), KEY: _key_pem(key)}


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key, now: datetime,
             until: datetime) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        subject_name=subject, issuer_name=issuer, public_key=key.public_key(),
        serial_number=x509.random_serial_number(), not_valid_before=now - BACKDATE, not_valid_after=until)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=True, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
                         content_commitment=False, key_encipherment=False, data_encipherment=False,
                         key_agreement=False, encipher_only=False, decipher_only=False)


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _names(certificate: x509.Certificate | None) -> set[str]:
    if certificate is None:
        return set()
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return set()
    return {*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress))}


def _made(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_before_utc + BACKDATE


def _is_valid(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _is_due(certificate: x509.Certificate, now: datetime) -> bool:
    made = _made(certificate)
    return now >= made + (certificate.not_valid_after_utc - made) * 2 / 3


def _has_signed(authority: x509.Certificate, certificate: x509.Certificate | None) -> bool:
    if certificate is None:
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _certificates(data: Mapping[str, bytes]) -> list[x509.Certificate]:
    return _load(data.get(CA_CERTIFICATES, b""))


def _load(pem: bytes) -> list[x509.Certificate]:
    """The certificates in *pem*; none when one of them cannot be read."""
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError:
        return []


def _serving(data: Mapping[str, bytes]) -> x509.Certificate | None:
    """The certificate that is served, if it can be read and the key is its own."""
    certificates, key = _load(data.get(CERTIFICATE, b"")), _key(data.get(KEY, b""))
    if not certificates or key is None or certificates[0].public_key() != key.public_key():
        return None
    return certificates[0]


def _key(pem: bytes) -> _Key | None:
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _pem(certificates: Iterable[x509.Certificate]) -> bytes:
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def _key_pem(key: _Key) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                             serialization.NoEncryption())
