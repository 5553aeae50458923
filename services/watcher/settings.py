"""The settings of a watcher."""

from typing import Annotated

from msgspec import Meta

from services.watcher.documents import MAX_VALUES
from services.watcher.kubernetes.settings import IpFamily, KubernetesSettings
from shared.quantities import PositiveDuration, Size


class WatcherSettings(KubernetesSettings, frozen=True, kw_only=True):
    """Publishes the endpoints, the resources and the configuration of a pool, and writes Envoy's endpoints file."""

    kubernetes: Annotated[
        bool, Meta(description="read pods and resources of a Kubernetes cluster instead of files")
    ] = False
    pools: Annotated[
        tuple[str, ...],
        Meta(
            description="with Kubernetes: several InferencePools to serve instead of one, each as namespace/name, or as"
            " namespace/name=CONFIGMAP for a pool with a ConfigMap of its own"
        ),
    ] = ()
    config_map: Annotated[
        str,
        Meta(
            description="with Kubernetes: the ConfigMap with the EndpointPickerConfig, namespace/name or "
            "namespace/name/key"
        ),
    ] = ""
    endpoint_selector: Annotated[
        tuple[str, ...],
        Meta(description="with Kubernetes and without an InferencePool: labels that select the pods, name=value each"),
    ] = ()
    endpoint_target_ports: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=65535)], ...],
        Meta(max_length=8, description="without an InferencePool: the ports on which each pod serves"),
    ] = ()
    endpoint_slices: Annotated[
        str,
        Meta(description="with Kubernetes: a Service whose EndpointSlices list the servers, instead of pods"),
    ] = ""
    ip_family: Annotated[
        IpFamily, Meta(description="with Kubernetes: which of a pod's addresses to use; any is the primary one")
    ] = "any"
    keep_unreachable: Annotated[
        bool,
        Meta(description="with Kubernetes: while no pod is ready, use the pods on unreachable nodes"),
    ] = False
    endpoints_file: Annotated[
        str,
        Meta(
            description="endpoints and resources: a YAML or JSON file, or a directory of such files; default: the"
            " path in the configuration's file-discovery plugin"
        ),
    ] = ""
    config_file: Annotated[
        str, Meta(description="the EndpointPickerConfig to publish; takes precedence over one in the endpoints files")
    ] = ""
    nats_replicas: Annotated[
        int,
        Meta(
            ge=1, le=5, description="how many servers of a NATS cluster store the facts and the lease, usually 1 or 3"
        ),
    ] = 1
    release_lease_after: Annotated[
        PositiveDuration,
        Meta(
            description="after this time without contact to its sources, a watcher gives up the lease to one that"
            " has contact"
        ),
    ] = 10.0
    allow_actions: Annotated[
        bool,
        Meta(
            description="drain and undrain endpoints when a console requests it; the watcher must be allowed to write"
            " the endpoints file or to patch pods"
        ),
    ] = False
    eds_file: Annotated[str, Meta(description="where to write the endpoints for Envoy's EDS; default: nowhere")] = ""
    eds_cluster: Annotated[str, Meta(min_length=1, description="the name of Envoy's cluster in the EDS file")] = (
        "model-servers"
    )
    resolve_interval: Annotated[
        PositiveDuration, Meta(description="interval between look-ups of an endpoint's host name")
    ] = 30.0
    resolve_timeout: Annotated[PositiveDuration, Meta(description="time limit of a look-up of a host name")] = 5.0
    max_lookups: Annotated[
        int,
        Meta(ge=1, description="maximum concurrent look-ups of host names; the new names of one file use at most half"),
    ] = 64
    rescan_interval: Annotated[
        PositiveDuration, Meta(description="interval between checks of the files when the system sends no notification")
    ] = 2.0
    allow_experimental_plugins: Annotated[
        bool, Meta(description="accept a configuration with plugin types of alpha stability")
    ] = False
    max_file_size: Annotated[Size, Meta(description="maximum bytes of a file")] = 16 * 2**20
    max_file_values: Annotated[
        int,
        Meta(ge=1, description="maximum values in a file, keys included; aliases count as expanded"),
    ] = MAX_VALUES
    max_files: Annotated[int, Meta(ge=1, description="maximum files of a directory")] = 1000
