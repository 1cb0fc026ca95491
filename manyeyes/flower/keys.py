"""Certificates and keys for a federation on one's own machines: a CA, the SuperLink's certificate, a key a client."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

DAYS = 365


def make_keys(folder: Path, clients: int, hosts: Sequence[str]) -> list[Path]:
    """ca.crt, server.crt and server.key for these hosts, and client-1, client-1.pub, ...; who signs is forgotten."""
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty: choose a new folder, so that no key is lost")
    folder.mkdir(parents=True, exist_ok=True)
    signer, owner = ec.generate_private_key(ec.SECP384R1()), _name("manyeyes trial CA")
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    ca = _certificate(owner, owner, signer.public_key()).add_extension(x509.BasicConstraints(True, 0), True)
    ca = ca.add_extension(usage, True)
    server = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    signed = _certificate(_name(hosts[0]), owner, server.public_key()).add_extension(names, False)
    signed = signed.add_extension(authority, False)
    made = [
        _write(folder / "ca.crt", ca.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)),
        _write(folder / "server.crt", signed.sign(signer, hashes.SHA384()).public_bytes(Encoding.PEM)),
        _write(folder / "server.key", _private(server, PrivateFormat.PKCS8)),
    ]
    for number in range(1, clients + 1):
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        made.append(_write(folder / f"client-{number}", _private(key, PrivateFormat.OpenSSH)))
        made.append(_write(folder / f"client-{number}.pub", public + b"\n"))
    return made


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    found = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
    found = found.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=DAYS))
    return found.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), False)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


def _write(path: Path, data: bytes) -> Path:
    path.touch(mode=0o600)  # before there is anything in it to read
    path.write_bytes(data)
    return path
