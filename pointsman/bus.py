"""`pointsman bus ls` and `pointsman bus get KEY`: what is in the key-value buckets, decoded.

Keys are those of `nats kv ls`. The pool may be left out, and names needn't be escaped: `endpoint.default/vllm-0:8000`
stands for `default_default.endpoint.default/vllm-0=3A8000`. Frames and leases last for seconds: an expired one is gone.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import yaml
from msgspec import Meta, Struct

from pointsman.bus_entries import Entry, decode_entry, summary
from pointsman.command import print_json, usage_errors
from pointsman.output import print_lines
from pointsman.query_command import FAILED, QueryClient, QuerySettings, connected, run_command
from pointsman.table import text_table
from shared.bus import jetstream
from shared.bus.errors import BusError, JetStreamError, NoResponders
from shared.bus.subjects import escape
from shared.config.problems import Invalid, Problem
from shared.printable import printable
from shared.service.settings import parse

ACTIONS = ("get", "ls")


class BusCommandSettings(QuerySettings, frozen=True, kw_only=True):
    """Lists the entries of the buckets (`ls`, `ls PATTERN`), or decodes entries (`get KEY`). Exits with 1 if there is
    no such entry."""

    words: Annotated[
        tuple[str, ...],
        Meta(
            description="`get` and keys, or `ls` and patterns of keys, with *; `ls` alone lists all",
            extra={"argument": "get|ls KEY…"},
        ),
    ]
    bucket: Annotated[
        Literal["", "endpoints", "attributes", "leases"], Meta(description="the only bucket to look in; default: all")
    ] = ""
    format: Annotated[Literal["yaml", "json"], Meta(description="how entries are written")] = "yaml"


class Row(Struct, frozen=True):
    """An entry of a list."""

    bucket: str
    key: str
    revision: int
    bytes: int
    what: str


class _Dumper(yaml.SafeDumper):
    """Quotes texts with characters that `printable` escapes, line breaks aside: YAML then reads its escapes."""


def _quoted(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = text.replace("\n", "").isprintable()
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')


_Dumper.add_representer(str, _quoted)


def main(argv: Sequence[str]) -> int:
    """`pointsman bus`: 0 if the entries were found, 1 if not or NATS can't be reached, 2 for wrong options."""
    with usage_errors():
        settings = parse(BusCommandSettings, argv, os.environ, "pointsman bus")
        action, *keys = settings.words
        if action not in ACTIONS:
            raise Invalid([Problem("get|ls", f"{action!r} is neither get nor ls")])
        if action == "get" and not keys:
            raise Invalid([Problem("KEY", "get needs a key; `pointsman bus ls` lists them")])
    return run_command(_list(settings, keys) if action == "ls" else _get(settings, keys))


async def _list(settings: BusCommandSettings, patterns: Sequence[str]) -> int:
    found: list[Row] = []
    async with connected(settings, "bus") as client:
        for name, bucket in _buckets(client, settings.bucket):
            stored = await _entries(client, bucket)
            for entry in stored:
                if not patterns or any(fnmatchcase(entry.key, pattern) for pattern in patterns):
                    found.append(Row(name, entry.key, entry.revision, entry.size, summary(entry)))
    if settings.format == "json":
        print_json(found)
    else:
        rows = [[row.bucket, row.key, str(row.revision), str(row.bytes), row.what] for row in found]
        print_lines(text_table(("bucket", "key", "revision", "bytes", "what"), rows))
    return 0 if found or not patterns else FAILED


async def _get(settings: BusCommandSettings, keys: Sequence[str]) -> int:
    documents: list[dict[str, Any]] = []
    missing: list[str] = []
    async with connected(settings, "bus") as client:
        for key in keys:
            found = [
                {"bucket": name, **entry.document()}
                for name, bucket in _buckets(client, settings.bucket)
                if (entry := await _entry(client, name, bucket, key)) is not None
            ]
            documents += found
            missing += [] if found else [key]
    if settings.format == "json":
        print_json(documents[0] if len(keys) == 1 and len(documents) == 1 else documents)
    elif documents:
        print_lines(yaml_lines(documents))
    for key in missing:
        print(f"no entry {key!r}; `pointsman bus ls` lists them", file=sys.stderr)
    return FAILED if missing else 0


def yaml_lines(documents: Sequence[dict[str, Any]]) -> list[str]:
    """The documents in YAML, in lines that a terminal can show."""
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return [printable(line) for line in text.removesuffix("\n").split("\n")]


def _buckets(client: QueryClient, only: str) -> Iterator[tuple[str, str]]:
    """(name without the prefix, name) of the buckets to look in."""
    subjects = client.subjects
    for name, bucket in (
        ("endpoints", subjects.endpoints_bucket),
        ("attributes", subjects.attributes_bucket),
        ("leases", subjects.leases_bucket),
    ):
        if only in ("", name):
            yield name, bucket


async def _entries(client: QueryClient, bucket: str) -> list[Entry]:
    """Everything in a bucket; nothing if there is no such bucket."""
    start = len(f"$KV.{bucket}.")
    try:
        return await jetstream.snapshot(
            client.bus,
            bucket,
            f"$KV.{bucket}.>",
            read=lambda stored: decode_entry(stored.subject[start:], stored),
            timeout=client.timeout,
        )
    except NoResponders:
        return []


async def _entry(client: QueryClient, name: str, bucket: str, key: str) -> Entry | None:
    for spelling in spellings(client.pool, key):
        try:
            stored = await jetstream.last(client.bus, bucket, f"$KV.{bucket}.{spelling}", timeout=client.timeout)
        except JetStreamError as error:
            if error.error_code == jetstream.STREAM_NOT_FOUND:
                return None
            raise
        except NoResponders:
            raise BusError(f"the bucket {name} can't be read: JetStream doesn't answer") from None
        if stored is not None:
            return decode_entry(spelling, stored)
    return None


def spellings(pool: str, key: str) -> list[str]:
    """The keys that a user may mean: the key as it is; with the pool; and with the rest behind the kind escaped.

    >>> spellings("default_default", "endpoint.default/a:1")
    ['default_default.endpoint.default/a=3A1']
    """
    kind, dot, name = key.partition(".")
    found = [key, f"{pool}.{key}"]
    if dot:
        found += [f"{kind}.{escape(name)}", f"{pool}.{kind}.{escape(name)}"]
    else:
        found.append(escape(key))
    allowed = [word for word in found if not set(word) & set(" :*>\t") and all(word.split("."))]
    return list(dict.fromkeys(allowed))
