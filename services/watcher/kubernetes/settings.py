"""How the watcher talks to the Kubernetes API: everything that may be chosen, with what is chosen by default."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from shared.quantities import PositiveDuration, Size
from shared.service import CommonSettings

IpFamily: TypeAlias = Literal["any", "IPv4", "IPv6"]


class KubernetesSettings(CommonSettings, frozen=True, kw_only=True):
    """What a watcher that talks to the Kubernetes API can be told. Durations are seconds, sizes bytes."""

    kubeconfig: Annotated[
        str,
        Meta(
            description="a kubeconfig file; default: the pod's service account, "
            "and outside of pods what kubectl reads (KUBECONFIG, ~/.kube/config)"
        ),
    ] = ""
    kubeconfig_context: Annotated[str, Meta(description="the kubeconfig's context; default: its current one")] = ""
    kubernetes_connect_timeout: Annotated[
        PositiveDuration, Meta(description="how long a connection may take to be made")
    ] = 5.0
    kubernetes_request_timeout: Annotated[
        PositiveDuration, Meta(description="how long one request may take, a watch aside; a list's page is one request")
    ] = 30.0
    kubernetes_credentials_timeout: Annotated[
        PositiveDuration, Meta(description="how long a kubeconfig's exec plugin may take to give credentials")
    ] = 60.0
    kubernetes_page_size: Annotated[int, Meta(ge=1, description="objects of one page of a list")] = 500
    kubernetes_answer_limit: Annotated[Size, Meta(description="bytes of one answer, a list's page for example")] = (
        256 * 2**20
    )
    kubernetes_line_limit: Annotated[Size, Meta(description="bytes of one watch event")] = 16 * 2**20
    kubernetes_watch_timeout: Annotated[
        PositiveDuration, Meta(description="how long the API server keeps a watch open, ±20 % so that watches spread")
    ] = 300.0
    kubernetes_watch_grace: Annotated[
        PositiveDuration, Meta(description="how long after its time a watch that the server doesn't end is ended here")
    ] = 30.0
    kubernetes_inactivity_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="a watch on which nothing came for so long, no bookmark either, is begun anew; "
            "the API server sends a bookmark every minute, but none where nothing changes"
        ),
    ] = 90.0
    kubernetes_keepalive: Annotated[
        PositiveDuration,
        Meta(description="how long a watch's connection whose other end is gone without a word is believed in (TCP)"),
    ] = 30.0
    kubernetes_first_backoff: Annotated[
        PositiveDuration, Meta(description="pause after the first failure; it doubles")
    ] = 0.5
    kubernetes_longest_backoff: Annotated[PositiveDuration, Meta(description="pause after many failures")] = 30.0
    kubernetes_longest_retry_after: Annotated[
        PositiveDuration, Meta(description="the longest pause that a server's Retry-After is given")
    ] = 120.0
    kubernetes_refused_interval: Annotated[
        PositiveDuration, Meta(description="time between two tries of what is forbidden (403) or isn't installed (404)")
    ] = 30.0
    kubernetes_discovery_interval: Annotated[
        PositiveDuration,
        Meta(
            description="time between two looks at which kinds are installed; "
            "after twice that without an answer, what a silent watch has said counts as no longer confirmed"
        ),
    ] = 10.0
    kubernetes_conditions_per_minute: Annotated[
        int, Meta(ge=0, description="conditions of resources that are written in a minute at most; 0: none ever")
    ] = 600
    kubernetes_events_per_minute: Annotated[
        int, Meta(ge=0, description="Events that are created in a minute at most, others later; 0: none ever")
    ] = 60
    kubernetes_event_grace: Annotated[
        PositiveDuration,
        Meta(description="how long a pool without pods, for example, has to be without before an Event says so"),
    ] = 10.0
    kubernetes_event_interval: Annotated[
        PositiveDuration,
        Meta(
            description="time after which the Event of what is still wrong is created again, if it is there no longer"
        ),
    ] = 900.0
