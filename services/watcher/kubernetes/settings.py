"""Settings of requests to the Kubernetes API."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from shared.quantities import PositiveDuration, Size
from shared.service.settings import CommonSettings

IpFamily: TypeAlias = Literal["any", "IPv4", "IPv6"]


class KubernetesSettings(CommonSettings, frozen=True, kw_only=True):
    """Settings of the Kubernetes API. Durations are seconds, sizes bytes."""

    kubeconfig: Annotated[
        str,
        Meta(
            description="a kubeconfig file; default: the pod's service account, "
            "and outside of pods what kubectl reads (KUBECONFIG, ~/.kube/config)"
        ),
    ] = ""
    kubeconfig_context: Annotated[str, Meta(description="the kubeconfig's context; default: its current one")] = ""
    kubernetes_connect_timeout: Annotated[PositiveDuration, Meta(description="time limit for opening a connection")] = (
        5.0
    )
    kubernetes_request_timeout: Annotated[
        PositiveDuration,
        Meta(description="time limit of a request other than a watch; each page of a list is a request"),
    ] = 30.0
    kubernetes_credentials_timeout: Annotated[
        PositiveDuration, Meta(description="time limit for a kubeconfig's exec plugin to return credentials")
    ] = 60.0
    kubernetes_page_size: Annotated[int, Meta(ge=1, description="objects per page of a list")] = 500
    kubernetes_answer_limit: Annotated[
        Size,
        Meta(
            description="maximum bytes of a response; a page of a list that is larger, or has more than 16 MiB, is "
            "requested again with a quarter of as many objects"
        ),
    ] = 256 * 2**20
    kubernetes_line_limit: Annotated[Size, Meta(description="maximum bytes of a watch event")] = 16 * 2**20
    kubernetes_watch_timeout: Annotated[
        PositiveDuration, Meta(description="duration of a watch, as requested from the API server, with ±20 % jitter")
    ] = 300.0
    kubernetes_watch_grace: Annotated[
        PositiveDuration,
        Meta(description="how long after its duration the watcher ends a watch that the API server hasn't ended"),
    ] = 30.0
    kubernetes_inactivity_timeout: Annotated[
        PositiveDuration,
        Meta(
            description="a watch without any event for this time, bookmarks included, is restarted; the API "
            "server sends a bookmark every minute, unless nothing changes"
        ),
    ] = 90.0
    kubernetes_keepalive: Annotated[
        PositiveDuration,
        Meta(description="time until TCP keepalive detects that the other end of a watch's connection is gone"),
    ] = 30.0
    kubernetes_initial_backoff: Annotated[
        PositiveDuration, Meta(description="pause after the first failure; doubles with each further failure")
    ] = 0.5
    kubernetes_max_backoff: Annotated[PositiveDuration, Meta(description="longest pause after repeated failures")] = (
        30.0
    )
    kubernetes_max_retry_after: Annotated[
        PositiveDuration, Meta(description="longest pause accepted from a server's Retry-After")
    ] = 120.0
    kubernetes_refused_interval: Annotated[
        PositiveDuration,
        Meta(description="interval between attempts for a kind that is forbidden (403) or not installed (404)"),
    ] = 30.0
    kubernetes_discovery_interval: Annotated[
        PositiveDuration,
        Meta(
            description="interval between checks which kinds are installed; after twice this time without a "
            "response, the objects of a silent watch count as unconfirmed"
        ),
    ] = 10.0
    kubernetes_conditions_per_minute: Annotated[
        int, Meta(ge=0, description="maximum conditions written per minute; 0 writes none")
    ] = 600
    kubernetes_events_per_minute: Annotated[
        int, Meta(ge=0, description="maximum Events created per minute, further ones are delayed; 0 creates none")
    ] = 60
    kubernetes_event_grace: Annotated[
        PositiveDuration,
        Meta(
            description="how long a transient problem must last before an Event is created, such as a pool without pods"
        ),
    ] = 10.0
    kubernetes_event_interval: Annotated[
        PositiveDuration,
        Meta(description="interval after which the Event of a lasting problem is created again if it is missing"),
    ] = 900.0
