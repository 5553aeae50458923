"""Columns of numbers as they travel in messages: packed, little-endian, one row per endpoint.

Decoding gives read-only numpy arrays over the message's own bytes; nothing is copied.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from xxhash import xxh3_64_intdigest

from shared.model import Endpoint

Floats: TypeAlias = NDArray[np.float64]
Ages: TypeAlias = NDArray[np.float32]
Hashes: TypeAlias = NDArray[np.uint64]
Counts: TypeAlias = NDArray[np.uint32]


def pack_floats(values: ArrayLike) -> bytes:
    """Values of an attribute as float64; NaN where there is none."""
    return np.asarray(values, "<f8").tobytes()


def unpack_floats(column: bytes) -> Floats:
    return np.frombuffer(column, "<f8")


def pack_ages(seconds: ArrayLike) -> bytes:
    """Ages in seconds as float32."""
    return np.asarray(seconds, "<f4").tobytes()


def unpack_ages(column: bytes) -> Ages:
    return np.frombuffer(column, "<f4")


def endpoint_hash(endpoint_id: str) -> int:
    """The 64 bits by which load tables name an endpoint."""
    return xxh3_64_intdigest(endpoint_id.encode())


def server_hash(endpoint: Endpoint) -> int:
    """The 64 bits by which prefix placements name a server: another one under the same id has others."""
    return xxh3_64_intdigest(f"{endpoint.id}\0{endpoint.authority}\0{endpoint.uid}".encode())


def flow_digest(text: str) -> bytes:
    """Eight bytes that stand for a text of a client."""
    return blake2b(text.encode(errors="replace"), digest_size=8).digest()


def flow_hash(id: str) -> int:
    """The 64 bits by which queue tables name a flow. Never 0, which stands for the rest of a band. Clients choose the
    ids, so it is a cryptographic hash."""
    return int.from_bytes(flow_digest(id), "little") or 1


def pack_hashes(hashes: Sequence[int] | Hashes) -> bytes:
    """Hashes as uint64."""
    return np.asarray(hashes, "<u8").tobytes()


def unpack_hashes(column: bytes) -> Hashes:
    return np.frombuffer(column, "<u8")


def pack_counts(counts: ArrayLike) -> bytes:
    """Numbers of requests or tokens as uint32; larger ones are held at the limit, negative ones at 0."""
    packed: bytes = np.clip(np.asarray(counts), 0, 0xFFFFFFFF).astype("<u4").tobytes()
    return packed


def unpack_counts(column: bytes) -> Counts:
    return np.frombuffer(column, "<u4")
