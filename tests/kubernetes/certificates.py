"""Certificates of a test cluster, issued by an authority of its own that lives as long as the cluster."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Authority", "Credentials", "write_signing_key"]

LIFETIME: Final = dt.timedelta(days=2)
CLOCK_SKEW: Final = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files of a certificate and its private key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority that stores everything it issues in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test-cluster")
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=True), critical=True)
        self.certificate = folder / "authority.crt"
        self.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(
        self, file_name: str, user: str, groups: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> Credentials:
        """Issue a certificate by which a client is `user` in `groups`, and a server is at `addresses`."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(user, groups), self._name, key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_key_usage(signs_certificates=False), critical=True)
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if addresses else [])]
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        if addresses:
            builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_general_name, addresses))), False)
        issued = Credentials(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        issued.certificate.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        _write_key(issued.key, key)
        return issued


def write_signing_key(path: Path) -> None:
    """Write a private key with which service account tokens are signed."""
    _write_key(path, ec.generate_private_key(ec.SECP256R1()))


def _name(user: str, groups: Sequence[str] = ()) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - CLOCK_SKEW).not_valid_after(now + LIFETIME)


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
