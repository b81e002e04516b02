"""Schemas of Protobuf, as a registry keeps them, as descriptors.

A registry keeps the text of a .proto file, or a serialized FileDescriptorProto in base64, which
Confluent's serializers for Python register.

Rule 1: texts are compiled by protoc (of grpcio-tools) in a process of its own, which has bounded
        time, memory and output, and sees one directory of ours and the well-known types.
Rule 2: names of imports come from the registry: none leaves the directory, and none takes the
        place of a well-known type.
"""

import base64
import binascii
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any, Final

from tidelog.schemas.problems import SchemaProblem, missing
from tidelog.schemas.registry import Registry, Schema

try:
    from google.protobuf import (
        any_pb2,
        api_pb2,
        descriptor_pb2,
        descriptor_pool,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        source_context_pb2,
        struct_pb2,
        timestamp_pb2,
        type_pb2,
        wrappers_pb2,
    )
    from google.protobuf.message import DecodeError, EncodeError

    KNOWN: Final[dict[str, Any]] = {
        one.DESCRIPTOR.name: one.DESCRIPTOR
        for one in (
            any_pb2,
            api_pb2,
            descriptor_pb2,
            duration_pb2,
            empty_pb2,
            field_mask_pb2,
            source_context_pb2,
            struct_pb2,
            timestamp_pb2,
            type_pb2,
            wrappers_pb2,
        )
    }
except ImportError:  # pragma: no cover - tried where protobuf is not installed
    descriptor_pb2 = None

ROOT: Final = "tidelog_schema.proto"
REFERENCES_MAX: Final = 200
COMPILE_SECONDS_MAX: Final = 20
MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
DESCRIPTORS_BYTES_MAX: Final = 16 * 1024 * 1024
_CHILD: Final = f"""
import resource, sys
sys.path.append(sys.argv.pop(1))  # where we have grpc_tools from: -I knows site-packages only
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES_MAX}, {MEMORY_BYTES_MAX}))
resource.setrlimit(resource.RLIMIT_FSIZE, ({DESCRIPTORS_BYTES_MAX}, {DESCRIPTORS_BYTES_MAX}))
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", *sys.argv[1:]]))
"""
_NOISE: Final = re.compile(r"WARNING: |[IW]\d{4} ")
_BASE64: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}")
"""Without white space at its end: two ways to take it would make long ones take for ever."""


def file_of(schema: Schema, registry: Registry | None) -> Any:
    """The FileDescriptor of a schema, in a pool of its own."""
    if descriptor_pb2 is None:
        raise missing("protobuf", "Protobuf")
    sources: dict[str, str] = {ROOT: schema.text}
    _gather(schema, registry, sources)
    ready = {name: _serialized(text, name) for name, text in sources.items()}
    if any(one is None for one in ready.values()):
        # protoc reads texts only; imports that are descriptors cannot be mixed with them.
        if any(one is not None for one in ready.values()):
            raise SchemaProblem(
                "some schemas are .proto texts and others serialized descriptors; register all of "
                "them in one form"
            )
        files = _compiled(sources)
    else:
        files = {name: one for name, one in ready.items() if one is not None}
    return _pooled(files)


def _gather(schema: Schema, registry: Registry | None, sources: dict[str, str]) -> None:
    """The texts of all schemas that one refers to, by the name under which it is imported."""
    for reference in schema.references:
        if reference.name in sources or reference.name in KNOWN:
            continue
        if registry is None:
            raise SchemaProblem(f"the schema imports {reference.name}, which is not at hand")
        path = PurePosixPath(reference.name)
        is_inside = str(path) == reference.name and bool(path.parts) and ".." not in path.parts
        if not is_inside or path.is_absolute() or "\\" in reference.name or "\0" in reference.name:
            raise SchemaProblem(f"the schema imports {reference.name!r}, which is no relative path")
        if len(sources) > REFERENCES_MAX:
            raise SchemaProblem(f"the schema imports more than {REFERENCES_MAX} others")
        other = registry.version(reference.subject, reference.version).schema
        sources[reference.name] = other.text
        _gather(other, registry, sources)


def _serialized(text: str, name: str) -> Any:
    """The FileDescriptorProto that a text is in base64; None if it is a .proto file."""
    if not _BASE64.fullmatch(text.rstrip()):
        return None
    try:
        found = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise SchemaProblem(f"{_shown(name)} is no Protobuf schema: {error}") from None
    found.name = name
    return found


def _compiled(sources: dict[str, str]) -> dict[str, Any]:
    try:
        import grpc_tools
    except ImportError:  # pragma: no cover - tried where it is not installed
        raise missing("grpcio-tools", "Protobuf") from None
    package = Path(grpc_tools.__file__).parent
    known = package / "_proto"
    with tempfile.TemporaryDirectory(prefix="tidelog-proto-") as folder:
        for name, text in sources.items():
            try:
                path = Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            except (OSError, ValueError) as error:
                raise SchemaProblem(f"{name!r} cannot be compiled: {error}") from None
        out = Path(folder, "descriptors.out")
        _run(
            [
                sys.executable,
                "-I",
                "-c",
                _CHILD,
                str(package.parent),
                f"-I{known}",
                f"-I{folder}",
                "--include_imports",
                f"--descriptor_set_out={out}",
                ROOT,
            ],
            folder,
        )
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return {one.name: one for one in found.file}


def _run(command: list[str], folder: str) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=COMPILE_SECONDS_MAX,
            env={"PATH": os.defpath},
        )
    except subprocess.TimeoutExpired:
        raise SchemaProblem(
            f"the Protobuf schema takes more than {COMPILE_SECONDS_MAX} s to compile"
        ) from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").replace(f"{folder}/", "").splitlines()
        said = " ".join(one for one in lines if not _NOISE.match(one)).replace(ROOT, "line ")
        why = said[:400] or f"protoc ends with {done.returncode}"
        raise SchemaProblem(f"it is no Protobuf schema: {why}")


def _pooled(files: dict[str, Any]) -> Any:
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str, around: tuple[str, ...]) -> None:
        if name in added:
            return
        if name in around:
            raise SchemaProblem(f"{_shown(name)} imports itself")
        if name in KNOWN:
            found = descriptor_pb2.FileDescriptorProto()
            KNOWN[name].CopyToProto(found)
        elif name in files:
            found = files[name]
        else:
            raise SchemaProblem(
                f"the schema imports {name}, which is neither among its references nor a well-known type"
            )
        for one in found.dependency:
            add(one, (*around, name))
        added.add(name)
        pool.AddSerializedFile(found.SerializeToString())

    try:
        add(ROOT, ())
        return pool.FindFileByName(ROOT)
    except (TypeError, KeyError, RecursionError, EncodeError) as error:
        raise SchemaProblem(f"it is no Protobuf schema: {error}") from None


def _shown(name: str) -> str:
    return "the schema" if name == ROOT else repr(name)
