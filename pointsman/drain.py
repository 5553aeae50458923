"""`pointsman drain NAME` and `pointsman undrain NAME`: take an endpoint out of service, and back.

The watcher owns everything about endpoints, and reads it from its sources. So the command changes the source: an
annotation of the pod, or a field of the entry in the endpoints file. The drain survives restarts and a wiped bucket,
and only those who may change the source can drain endpoints.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta, Struct

from pointsman.command import parse_options, refuse
from pointsman.output import print_lines
from services.watcher.drain_file import DrainError, drain_in_files
from services.watcher.files import Unusable
from services.watcher.kubernetes.client import connect
from services.watcher.kubernetes.drain import drain_pod
from services.watcher.kubernetes.errors import KubernetesError
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.config.problems import Invalid
from shared.service.settings import report


class DrainOptions(Struct, frozen=True, kw_only=True):
    """Drains an endpoint: its requests finish, and it gets no new ones. `pointsman undrain` ends the drain.

    Changes what the watcher reads: the entry of the endpoints file, or the pod's annotation pointsman/drain."""

    name: Annotated[
        str,
        Meta(
            min_length=1,
            description="the endpoint's id or name; with Kubernetes, the pod's name or namespace/name",
            extra={"argument": "NAME"},
        ),
    ]
    endpoints_file: Annotated[str, Meta(description="the watcher's file, or directory of files")] = ""
    kubernetes: Annotated[bool, Meta(description="annotate the pod; needs the right to patch pods")] = False
    kubeconfig: Annotated[
        str, Meta(description="a kubeconfig file; default: what kubectl reads, or the pod's service account")
    ] = ""
    kubeconfig_context: Annotated[str, Meta(description="the kubeconfig's context; default: its current one")] = ""


class UndrainOptions(DrainOptions, frozen=True, kw_only=True):
    """Ends the drain of an endpoint: it gets new requests again.

    Changes what the watcher reads: the entry of the endpoints file, or the pod's annotation pointsman/drain."""


async def annotate(options: DrainOptions, drain: bool) -> str:
    """Set the pod's annotation, or remove it. Returns namespace and name of the pod. Raises KubernetesError."""
    settings = KubernetesSettings(kubeconfig=options.kubeconfig, kubeconfig_context=options.kubeconfig_context)
    client = await connect(settings)
    try:
        return await drain_pod(client, options.name, drain)
    finally:
        await client.close()


def main(argv: Sequence[str], command: str = "drain") -> int:
    """`pointsman drain`: 0 if the endpoint drains, 1 if the source can't be changed, 2 for wrong options."""
    drain = command == "drain"
    state = "is draining" if drain else "takes requests"
    options = parse_options(DrainOptions if drain else UndrainOptions, argv, command)
    if bool(options.endpoints_file) is options.kubernetes:
        refuse(ValueError("one of --endpoints-file and --kubernetes is required"))
    try:
        if options.kubernetes:
            print(f"pod {asyncio.run(annotate(options, drain))} {state}")
            return 0
        id, file, changed = drain_in_files(options.endpoints_file, options.name, drain)
    except Invalid as error:
        return report(error)
    except (DrainError, Unusable, KubernetesError, OSError) as error:
        print_lines([f"pointsman {command}: {error}"], error=True)
        return 1
    print_lines([f"{id} {state}{'' if changed else ' already'} ({file})"])
    return 0
