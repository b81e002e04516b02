"""Certificates for development: an authority, and what it signs.

Rule 1: a private key is readable by its owner alone, from its first byte on, and no file is replaced.
Rule 2: a node's certificate names the node as a URI (`NODE_URI`), beside its hosts. A client's certificate
        has the client's name as its common name, and does not serve.
"""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from tidelog.faces.cli.common import UserError
from tidelog.model import NodeId

AUTHORITY: Final = "ca"
NODE_URI: Final = "tidelog:node:{}"
"""How a node's certificate names the node."""
_EARLIER: Final = datetime.timedelta(minutes=5)
"""How long before it was made a certificate is valid: clocks differ."""


def make_authority(directory: Path, days: int) -> list[Path]:
    """A new authority in `directory`; returns the files of its certificate and key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("Tidelog development CA")
    builder = _builder(name, name, key, key, days, is_authority=True)
    return _write(directory, AUTHORITY, builder.sign(key, SHA256()), key)


def make_node(directory: Path, node: NodeId, hosts: Sequence[str], days: int) -> list[Path]:
    """A certificate of a node, which serves and connects, signed by the authority in `directory`."""
    names = [*map(_host, hosts), x509.UniformResourceIdentifier(NODE_URI.format(node))]
    purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    return _issue(directory, f"node-{node}", names, purposes, days)


def make_client(directory: Path, name: str, days: int) -> list[Path]:
    """A certificate of a client, signed by the authority in `directory`."""
    return _issue(directory, name, [], [ExtendedKeyUsageOID.CLIENT_AUTH], days)


def _issue(
    directory: Path,
    name: str,
    names: Sequence[x509.GeneralName],
    purposes: Sequence[x509.ObjectIdentifier],
    days: int,
) -> list[Path]:
    signer, signing_key = _authority(directory)
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), signer.subject, key, signing_key, days, is_authority=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return _write(directory, name, builder.sign(signing_key, SHA256()), key)


def _authority(directory: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    try:
        certificate = x509.load_pem_x509_certificate((directory / f"{AUTHORITY}.pem").read_bytes())
        key = load_pem_private_key((directory / f"{AUTHORITY}-key.pem").read_bytes(), password=None)
    except FileNotFoundError as error:
        raise UserError(
            f"{error.filename} is missing; make an authority first: tidelog certs ca --directory {directory}"
        ) from None
    except (ValueError, TypeError) as error:
        raise UserError(f"the authority in {directory} cannot be read: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"the authority in {directory} was not made by `tidelog certs ca`")
    return certificate, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing_key: ec.EllipticCurvePrivateKey,
    days: int,
    *,
    is_authority: bool,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _EARLIER)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), critical=True
        )
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(issuer_key, critical=False)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError:
        raise UserError(f"{text!r} is no host name; write others than ASCII in their xn-- form") from None


def _write(
    directory: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
) -> list[Path]:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    contents = {f"{name}-key.pem": private, f"{name}.pem": certificate.public_bytes(Encoding.PEM)}
    files = [directory / file for file in contents]
    for file in files:
        if file.exists():
            raise UserError(f"{file} exists; move it away, or choose another --directory")
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file, content in zip(files, contents.values(), strict=True):
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
            out.write(content)
    return files[::-1]
