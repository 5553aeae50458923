"""How the watcher talks to the Kubernetes API: everything that may be chosen, with what is chosen by default."""

from typing import Annotated

from msgspec import Meta, Struct

from shared.quantities import PositiveDuration, Size


class KubernetesSettings(Struct, frozen=True, kw_only=True):
    """Durations are seconds, sizes bytes."""

    kubeconfig: Annotated[
        str,
        Meta(
            description="a kubeconfig file; default: the pod's service account, "
            "and outside of pods what kubectl reads (KUBECONFIG, ~/.kube/config)"
        ),
    ] = ""
    context: Annotated[str, Meta(description="the kubeconfig's context; default: its current one")] = ""
    connect_timeout: Annotated[PositiveDuration, Meta(description="how long a connection may take to be made")] = 5.0
    request_timeout: Annotated[
        PositiveDuration, Meta(description="how long one request may take, a watch aside; a list's page is one request")
    ] = 30.0
    credentials_timeout: Annotated[
        PositiveDuration, Meta(description="how long a kubeconfig's exec plugin may take to give credentials")
    ] = 60.0
    page_size: Annotated[int, Meta(ge=1, description="objects of one page of a list")] = 500
    answer_limit: Annotated[Size, Meta(description="bytes of one answer, a list's page for example")] = 256 * 2**20
    line_limit: Annotated[Size, Meta(description="bytes of one watch event")] = 16 * 2**20
    watch_timeout: Annotated[
        PositiveDuration, Meta(description="how long the API server keeps a watch open, ±20 % so that watches spread")
    ] = 300.0
    watch_grace: Annotated[
        PositiveDuration, Meta(description="how long after its time a watch that the server doesn't end is ended here")
    ] = 30.0
    inactivity_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="a watch on which nothing came for so long, no bookmark either, is begun anew; "
            "the API server sends a bookmark every minute, but none where nothing changes"
        ),
    ] = 90.0
    keepalive: Annotated[
        PositiveDuration,
        Meta(description="how long a watch's connection whose other end is gone without a word is believed in (TCP)"),
    ] = 30.0
    first_backoff: Annotated[PositiveDuration, Meta(description="pause after the first failure; it doubles")] = 0.5
    longest_backoff: Annotated[PositiveDuration, Meta(description="pause after many failures")] = 30.0
    longest_retry_after: Annotated[
        PositiveDuration, Meta(description="the longest pause that a server's Retry-After is given")
    ] = 120.0
    refused_interval: Annotated[
        PositiveDuration, Meta(description="time between two tries of what is forbidden (403) or isn't installed (404)")
    ] = 30.0
    discovery_interval: Annotated[
        PositiveDuration, Meta(description="time between two looks at which kinds are installed")
    ] = 10.0
