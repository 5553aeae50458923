"""Kubernetes objects of kinds that somebody wants to hear of, as documents.

Of an object that a cluster's own API server took in, nothing is to be checked. A document was written by hand, so what
every object has in common is: a name, a namespace if any, labels and annotations that are texts. The rest is the
business of whoever reads it.
"""

from collections.abc import Mapping
from typing import Any

from shared.config.problems import Problems, join, show
from shared.datalayer.objects import KubernetesObject, ObjectKind


def read_object(raw: Mapping[str, Any], kind: ObjectKind, path: str, problems: Problems) -> KubernetesObject | None:
    """The object of a document; None after a problem, noted under `path`."""
    before = len(problems.errors)
    at = join(path, "metadata")
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping):
        problems.error(at, "required, and missing" if metadata is None else f"{show(metadata)} isn't a mapping")
        return None
    texts = {"name": "", "namespace": ""}
    for field in texts:
        value = metadata.get(field)
        if isinstance(value, str) and value:
            texts[field] = value
        elif value is not None:
            problems.error(join(at, field), f"{show(value)} isn't a name; a string is expected")
        elif field == "name":
            problems.error(join(at, field), "required, and missing")
    for field in ("labels", "annotations"):
        _check_texts(metadata.get(field), join(at, field), problems)
    if len(problems.errors) > before:
        return None
    return KubernetesObject(kind, texts["name"], dict(raw), texts["namespace"])


def _check_texts(raw: object, path: str, problems: Problems) -> None:
    if raw is None:
        return
    if not isinstance(raw, Mapping):
        problems.error(path, f"{show(raw)} isn't a mapping")
        return
    for key, value in raw.items():
        if not isinstance(key, str):
            problems.error(join(path, str(key)), f"the name {show(key)} isn't a string; put it in quotes")
        elif not isinstance(value, str):
            problems.error(join(path, key), f"{show(value)} isn't a string; put it in quotes")
