"""TLS contexts and the rights of callers."""

import datetime
import ipaddress
import logging
import os
import socket
import ssl
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from hami.errors import HamiError
from hami.web.connections import Connection
from hami.web.rights import ClientRight
from hami.web.tls import RETRY_S, TlsContext
from testing.cases import cases

TODAY = datetime.datetime(2026, 8, 21, tzinfo=datetime.UTC)


class Authority:
    """A CA that issues certificates for 127.0.0.1. *parent*: the CA that has signed it, by default itself."""

    def __init__(self, name, parent=None):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = (parent or self)._sign(
            self.name,
            self.key,
            x509.BasicConstraints(True, None),
            x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            x509.SubjectKeyIdentifier.from_public_key(self.key.public_key()),
        )

    def _sign(self, subject, key, *extensions):
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(TODAY - datetime.timedelta(days=3650))
            .not_valid_after(TODAY + datetime.timedelta(days=36500))
        )
        for extension in extensions:
            builder = builder.add_extension(
                extension, critical=isinstance(extension, x509.BasicConstraints)
            )
        return builder.sign(self.key, hashes.SHA256())

    def issue(self, name):
        """PEM of a new certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            key,
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]),
            x509.ExtendedKeyUsage(
                [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            ),
            x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
        )  # Python 3.13 asks for it
        return (
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
        )

    def pem(self):
        return self.certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authority():
    return Authority("ours")


class Pair:
    """Certificate and key in files, replaced as a kubelet replaces them: by rename."""

    def __init__(self, folder, authority):
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self._authority = authority

    def write(self, name):
        self.replace(*self._authority.issue(name))
        return self

    def replace(self, cert=None, key=None):
        for path, content in ((self.cert, cert), (self.key, key)):
            if content is not None:
                fresh = path.with_suffix(".new")
                fresh.write_bytes(content)
                os.replace(fresh, path)


@pytest.fixture
def pair(tmp_path, authority):
    return Pair(tmp_path, authority).write("first")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def connect(server_context, client_context):
    """Both ends of a TLS connection over a socket pair."""
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    theirs.settimeout(5)
    ends, failures = {}, []

    def accept():
        try:
            ends["server"] = server_context.wrap_socket(ours, server_side=True)
        except ssl.SSLError as error:
            failures.append(error)
            ours.close()

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        ends["client"] = client_context.wrap_socket(theirs, server_hostname="127.0.0.1")
    finally:
        thread.join()
    if failures:
        ends["client"].close()
        raise failures[0]
    return ends["server"], ends["client"]


def trusting(authority, **options):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.pem().decode())
    for name, value in options.items():
        setattr(context, name, value)
    return context


def served_name(tls, authority):
    """The common name of the certificate that a new connection sees."""
    server, client = connect(tls(), trusting(authority))
    with server, client:
        return dict(pair[0] for pair in client.getpeercert()["subject"])["commonName"]


def test_one_context_serves_all_connections_while_the_files_stand(pair):
    tls = TlsContext(str(pair.cert), str(pair.key))
    assert tls() is tls()


def test_a_renewed_pair_is_served_to_the_next_connection_and_open_ones_go_on(
    pair, authority, caplog
):
    caplog.set_level(logging.INFO)
    tls = TlsContext(str(pair.cert), str(pair.key))
    server, client = connect(tls(), trusting(authority))
    pair.write("second")
    assert served_name(tls, authority) == "second"
    with server, client:
        client.sendall(b"still here")
        assert server.recv(64) == b"still here"
    assert [record.message for record in caplog.records] == ["TLS files read again"]


def test_a_pair_that_does_not_match_leaves_the_last_good_one_and_is_logged_once(
    pair, authority, caplog
):
    clock = Clock()
    tls = TlsContext(str(pair.cert), str(pair.key), clock=clock)
    cert, key = authority.issue("second")
    pair.replace(cert=cert)
    for _ in range(3):
        assert served_name(tls, authority) == "first"
        clock.now += RETRY_S
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    pair.replace(key=key)
    assert served_name(tls, authority) == "second"
    pair.replace(key=b"")
    assert served_name(tls, authority) == "second"
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_broken_files_are_not_read_for_each_connection(pair, authority):
    clock = Clock()
    tls = TlsContext(str(pair.cert), str(pair.key), clock=clock)
    pair.replace(key=b"nonsense")
    tls()
    pair.write("second")
    assert served_name(tls, authority) == "first"
    clock.now += RETRY_S
    assert served_name(tls, authority) == "second"


def test_a_file_that_vanished_leaves_the_last_good_pair(pair, authority, caplog):
    tls = TlsContext(str(pair.cert), str(pair.key))
    pair.key.unlink()
    assert served_name(tls, authority) == "first"
    assert f"--key_file {pair.key}: No such file or directory" in caplog.records[0].problem


@cases(
    "break_it, problem",
    (
        "no certificate",
        lambda pair, ca: pair.cert.unlink(),
        "--cert_file {cert}: No such file or directory",
    ),
    ("no key", lambda pair, ca: pair.key.unlink(), "--key_file {key}: No such file or directory"),
    ("no CA", lambda pair, ca: ca.unlink(), "--client-ca-file {ca}: No such file or directory"),
    ("empty CA", lambda pair, ca: ca.write_bytes(b""), "--client-ca-file {ca}: no CA certificates"),
    (
        "nonsense",
        lambda pair, ca: pair.replace(cert=b"nonsense"),
        "--cert_file {cert} and --key_file {key}: no certificate",
    ),
    (
        "no key inside",
        lambda pair, ca: pair.replace(key=pair.cert.read_bytes()),
        "--cert_file {cert} and --key_file {key}: no cert",
    ),
)
def test_files_that_cannot_be_used_at_the_start_are_named(
    pair, authority, tmp_path, break_it, problem
):
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.pem())
    break_it(pair, ca)
    with pytest.raises(HamiError) as caught:
        TlsContext(str(pair.cert), str(pair.key), str(ca))
    assert str(caught.value).startswith(problem.format(cert=pair.cert, key=pair.key, ca=ca))


def test_an_encrypted_key_is_refused_without_asking(pair):
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.replace(
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(HamiError, match="no certificate with its key"):
        TlsContext(str(pair.cert), str(pair.key))


def test_h2_is_never_offered(pair, authority):
    client_context = trusting(authority)
    client_context.set_alpn_protocols(["h2", "http/1.1"])
    server, client = connect(TlsContext(str(pair.cert), str(pair.key))(), client_context)
    with server, client:
        assert client.selected_alpn_protocol() == "http/1.1"


def test_tls_below_1_2_is_refused(pair):
    context = TlsContext(str(pair.cert), str(pair.key))()
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.fixture
def with_client_ca(pair, authority, tmp_path):
    (tmp_path / "ca.crt").write_bytes(authority.pem())
    return TlsContext(str(pair.cert), str(pair.key), str(tmp_path / "ca.crt"))


def client_certificate(folder, authority, *intermediates):
    client_pair = Pair(folder, authority)
    client_pair.cert, client_pair.key = folder / "client.crt", folder / "client.key"
    client_pair.write("kube-scheduler")
    client_pair.cert.write_bytes(
        client_pair.cert.read_bytes() + b"".join(other.pem() for other in intermediates)
    )
    return str(client_pair.cert), str(client_pair.key)


def right(server):
    return Connection(server, {}, read_until=float, write_until=float).right


@pytest.fixture(scope="module")
def authorities(authority):
    """CAs by name. A *sub* CA is below the one after it; *double* has the name of the extenders' CA."""
    extenders, simulators = Authority("extenders"), Authority("simulators")
    return {
        "extenders": extenders,
        "simulators": simulators,
        "sub extenders": Authority("sub", extenders),
        "sub simulators": Authority("sub", simulators),
        "double": Authority("extenders", simulators),
    }


def right_with(pair, authority, folder, client_files, *, extenders=(), simulators=()):
    """The right of a client with the certificate *client_files* where these CAs are configured."""
    files = []
    for name, cas in (("extenders.crt", extenders), ("simulators.crt", simulators)):
        (folder / name).write_bytes(b"".join(ca.pem() for ca in cas))
        files.append(str(folder / name) if cas else "")
    client_context = trusting(authority)
    client_context.load_cert_chain(*client_files)
    server, client = connect(TlsContext(str(pair.cert), str(pair.key), *files)(), client_context)
    with server, client:
        return right(server)


E, S = ["extenders"], ["simulators"]


@cases(
    "signed_by, sent, extenders, simulators, expected",
    ("extender alone", "extenders", [], E, [], ClientRight.EXTENDER),
    ("simulator alone", "simulators", [], [], S, ClientRight.SIMULATE),
    ("extender", "extenders", [], E, S, ClientRight.EXTENDER),
    ("simulator", "simulators", [], E, S, ClientRight.SIMULATE),
    ("below the extenders' CA", "sub extenders", ["sub extenders"], E, S, ClientRight.EXTENDER),
    ("below the simulators' CA", "sub simulators", ["sub simulators"], E, S, ClientRight.SIMULATE),
    (
        "a CA below that takes the name of the other",
        "double",
        ["double"],
        E,
        S,
        ClientRight.SIMULATE,
    ),
    (
        "the simulators' CA is below",
        "sub extenders",
        [],
        E,
        ["sub extenders"],
        ClientRight.SIMULATE,
    ),
    ("beside a simulators' CA below", "extenders", [], E, ["sub extenders"], ClientRight.EXTENDER),
    (
        "the extenders' CA is below",
        "sub simulators",
        [],
        ["sub simulators"],
        S,
        ClientRight.SIMULATE,
    ),
)
def test_a_certificate_opens_what_its_ca_is_for(
    pair, authority, authorities, tmp_path, signed_by, sent, extenders, simulators, expected
):
    files = client_certificate(
        tmp_path, authorities[signed_by], *(authorities[name] for name in sent)
    )
    assert (
        right_with(
            pair,
            authority,
            tmp_path,
            files,
            extenders=[authorities[name] for name in extenders],
            simulators=[authorities[name] for name in simulators],
        )
        is expected
    )


def resumed(server_context, client_context):
    """The right of a client that has resumed its session."""
    session = None
    for _ in range(2):
        ours, theirs = socket.socketpair()
        accepted = []
        thread = threading.Thread(target=lambda: accepted.append(accept(server_context, ours)))
        thread.start()
        with client_context.wrap_socket(
            theirs, server_hostname="127.0.0.1", session=session
        ) as client:
            client.recv(1)
            session = client.session
            thread.join()
            with accepted[0] as server:
                was_resumed, found = server.session_reused, right(server)
    assert was_resumed
    return found


def accept(context, connection):
    server = context.wrap_socket(connection, server_side=True)
    server.send(b"x")  # the client gets its session with it
    return server


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@cases(
    "signed_by, expected", ("extenders", ClientRight.EXTENDER), ("simulators", ClientRight.SIMULATE)
)
def test_a_resumed_session_keeps_its_right(
    pair, authority, authorities, tmp_path, version, signed_by, expected
):
    """The chain of certificates is not known any more then."""
    files = []
    for name in (*E, *S):
        (tmp_path / name).write_bytes(authorities[name].pem())
        files.append(str(tmp_path / name))
    client_context = trusting(authority, maximum_version=version)
    client_context.load_cert_chain(*client_certificate(tmp_path, authorities[signed_by]))
    assert resumed(TlsContext(str(pair.cert), str(pair.key), *files)(), client_context) is expected


def test_no_ca_is_for_both(pair, authority, authorities, tmp_path):
    files = client_certificate(tmp_path, authorities["extenders"])
    both = [authorities["simulators"], authorities["extenders"]]
    with pytest.raises(HamiError, match="--simulate-client-ca-file .*has a CA of --client-ca-file"):
        right_with(
            pair, authority, tmp_path, files, extenders=[authorities["extenders"]], simulators=both
        )


@pytest.mark.parametrize("right", [E, S])
def test_a_client_that_sends_many_certificates_is_ended(
    pair, authority, authorities, tmp_path, right
):
    """OpenSSL would keep ten times their size as long as the connection is open."""
    files = client_certificate(
        tmp_path, authorities[right[0]], *(Authority(f"filler {n}") for n in range(25))
    )
    with pytest.raises(ConnectionResetError, match="larger than 8192 bytes"):
        right_with(
            pair,
            authority,
            tmp_path,
            files,
            extenders=[authorities["extenders"]],
            simulators=[authorities["simulators"]],
        )


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_caller_with_a_certificate_of_our_ca_has_its_right(
    with_client_ca, authority, tmp_path, version
):
    client_context = trusting(authority, maximum_version=version)
    client_context.load_cert_chain(*client_certificate(tmp_path, authority))
    server, client = connect(with_client_ca(), client_context)
    with server, client:
        assert right(server) is ClientRight.EXTENDER


def test_a_caller_without_a_certificate_is_served_and_has_no_right(with_client_ca, authority):
    server, client = connect(with_client_ca(), trusting(authority))
    with server, client:
        assert right(server) is ClientRight.NONE


def test_a_certificate_of_another_ca_ends_the_handshake(with_client_ca, authority, tmp_path):
    client_context = trusting(authority)
    client_context.load_cert_chain(*client_certificate(tmp_path, Authority("ours")))
    with pytest.raises(ssl.SSLError):
        connect(with_client_ca(), client_context)


def test_without_a_client_ca_a_certificate_counts_for_nothing(pair, authority, tmp_path):
    client_context = trusting(authority)
    client_context.load_cert_chain(*client_certificate(tmp_path, authority))
    server, client = connect(TlsContext(str(pair.cert), str(pair.key))(), client_context)
    with server, client:
        assert right(server) is ClientRight.NONE
