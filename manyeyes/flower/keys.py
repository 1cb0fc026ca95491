"""Certificates and keys for a federation on your own machines: a CA, the SuperLink's certificate, a key per client."""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

VALIDITY_DAYS = 365


def make_keys(folder: Path, num_clients: int, hosts: Sequence[str]) -> list[Path]:
    """Write ca.crt, server.crt, server.key, and client-1, client-1.pub, ...; the key of the CA is not stored."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder, so that no key is overwritten.")
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, ca_name = ec.generate_private_key(ec.SECP384R1()), _name("manyeyes trial CA")
    server_key = ec.generate_private_key(ec.SECP384R1())
    ca = _ca_certificate(ca_name, ca_key.public_key())
    server = _server_certificate(ca_name, ca_key.public_key(), server_key.public_key(), hosts)
    paths = [
        _write(folder / "ca.crt", ca.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM)),
        _write(folder / "server.crt", server.sign(ca_key, hashes.SHA384()).public_bytes(Encoding.PEM)),
        _write(folder / "server.key", _private_bytes(server_key, PrivateFormat.PKCS8)),
    ]
    for number in range(1, num_clients + 1):
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        paths.append(_write(folder / f"client-{number}", _private_bytes(key, PrivateFormat.OpenSSH)))
        paths.append(_write(folder / f"client-{number}.pub", public + b"\n"))
    return paths


def _ca_certificate(name: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    return _certificate(name, name, key).add_extension(x509.BasicConstraints(True, 0), True).add_extension(usage, True)


def _server_certificate(
    ca_name: x509.Name, ca_key: ec.EllipticCurvePublicKey, key: ec.EllipticCurvePublicKey, hosts: Sequence[str]
) -> x509.CertificateBuilder:
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key)
    certificate = _certificate(_name(hosts[0]), ca_name, key)
    return certificate.add_extension(names, False).add_extension(authority, False)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=VALIDITY_DAYS))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_bytes(key: ec.EllipticCurvePrivateKey, private_format: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, private_format, NoEncryption())


def _write(path: Path, content: bytes) -> Path:
    path.touch(mode=0o600)  # only its owner may read a key, also while it is written
    path.write_bytes(content)
    return path
