"""What a watcher can be told."""

from typing import Annotated

from msgspec import Meta

from services.watcher.kubernetes.settings import IpFamily, KubernetesSettings
from shared.quantities import PositiveDuration, Size


class WatcherSettings(KubernetesSettings, frozen=True, kw_only=True):
    """Publishes which endpoints, resources and configuration there are, and writes Envoy's endpoints file."""

    kubernetes: Annotated[
        bool, Meta(description="read pods and resources of a Kubernetes cluster, instead of files")
    ] = False
    pools: Annotated[
        tuple[str, ...],
        Meta(description="with Kubernetes: the InferencePools that are served, namespace/name each, instead of one"),
    ] = ()
    config_map: Annotated[
        str,
        Meta(
            description="with Kubernetes: the ConfigMap that has the EndpointPickerConfig, namespace/name or "
            "namespace/name/key"
        ),
    ] = ""
    endpoint_selector: Annotated[
        tuple[str, ...],
        Meta(
            description="with Kubernetes and without an InferencePool: the labels that the pods have, name=value each"
        ),
    ] = ()
    endpoint_target_ports: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65535)], ...],
        Meta(max_length=8, description="without an InferencePool: the ports at which each pod serves"),
    ] = ()
    endpoint_slices: Annotated[
        str,
        Meta(description="with Kubernetes: a Service whose EndpointSlices say where the servers are, instead of pods"),
    ] = ""
    ip_family: Annotated[
        IpFamily, Meta(description="with Kubernetes: which of a pod's addresses is taken; any is its primary one")
    ] = "any"
    endpoints_file: Annotated[
        str,
        Meta(
            description="endpoints and resources: a YAML or JSON file, or a directory of such files; "
            "default: what the configuration's file-discovery plugin names"
        ),
    ] = ""
    config_file: Annotated[
        str, Meta(description="the EndpointPickerConfig to publish; goes before one among the endpoints files")
    ] = ""
    nats_replicas: Annotated[
        int, Meta(ge=1, le=5, description="servers of a NATS cluster that each keep the facts and the lease: 1 or 3")
    ] = 1
    give_way_after: Annotated[
        PositiveDuration,
        Meta(
            description="without a word from where its facts come from, a watcher leaves publishing to one that is in "
            "touch after this time"
        ),
    ] = 10.0
    eds_file: Annotated[str, Meta(description="where to write the endpoints for Envoy's EDS; default: nowhere")] = ""
    eds_cluster: Annotated[str, Meta(min_length=1, description="the name of Envoy's cluster in the EDS file")] = (
        "model-servers"
    )
    resolve_interval: Annotated[
        PositiveDuration, Meta(description="time between two look-ups of an endpoint's host name")
    ] = 30.0
    resolve_timeout: Annotated[PositiveDuration, Meta(description="how long the look-up of a host name may take")] = 5.0
    max_lookups: Annotated[
        int,
        Meta(
            ge=1,
            description="host names that are looked up at a time; of those that took too long the last time, a quarter",
        ),
    ] = 64
    rescan_interval: Annotated[
        PositiveDuration, Meta(description="time between two looks at the files when the system gives no notice")
    ] = 2.0
    allow_experimental_plugins: Annotated[
        bool, Meta(description="accept a configuration with plugin types of alpha stability")
    ] = False
    max_file_size: Annotated[Size, Meta(description="bytes of a file that is read at most")] = 16 * 2**20
    max_files: Annotated[int, Meta(ge=1, description="files of a directory that are read at most")] = 1000
