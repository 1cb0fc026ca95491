"""Certificates and keys for a federation on your own machines: a CA, the SuperLink's certificate, a key per client."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from inspect import signature
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

VALIDITY_DAYS = 365
CA_NAME = "manyeyes trial CA"
CA_KEY_USES = ("digital_signature", "key_cert_sign", "crl_sign")


def make_keys(folder: Path, num_clients: int, hosts: Sequence[str]) -> list[Path]:
    """Write ca.crt, server.crt, server.key, and client-1, client-1.pub, ...; the key of the CA is not stored."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder, so that no key is overwritten.")
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, server_key, *client_keys = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2 + num_clients))
    usage = x509.KeyUsage(**{use: use in CA_KEY_USES for use in signature(x509.KeyUsage).parameters})
    ca = _certificate(CA_NAME, ca_key.public_key()).add_extension(x509.BasicConstraints(True, 0), True)
    server = _certificate(hosts[0], server_key.public_key())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    server = server.add_extension(authority, False).add_extension(_alternative_names(hosts), False)
    files = {
        "ca.crt": ca.add_extension(usage, True).sign(ca_key, SHA384()).public_bytes(Encoding.PEM),
        "server.crt": server.sign(ca_key, SHA384()).public_bytes(Encoding.PEM),
        "server.key": server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    }
    for number, key in enumerate(client_keys, 1):
        files[f"client-{number}"] = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        files[f"client-{number}.pub"] = public + b"\n"
    for name, content in files.items():
        (folder / name).touch(mode=0o600)  # only its owner may read a key, also while it is written
        (folder / name).write_bytes(content)
    return [folder / name for name in files]


def _certificate(subject: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    issuer_name, subject_name = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, n)]) for n in (CA_NAME, subject))
    builder = x509.CertificateBuilder(issuer_name, subject_name, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=VALIDITY_DAYS))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    return x509.SubjectAlternativeName(names)
