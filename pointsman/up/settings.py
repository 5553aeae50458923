"""The settings of `pointsman up`."""

from typing import Annotated

from msgspec import Meta, Struct

from pointsman.local.ports import ENVOY_PORT, LOOPBACK


class UpSettings(Struct, frozen=True, kw_only=True):
    """Runs nats-server, watcher, collectors, pickers, a console and Envoy on this machine, in front of your model
    servers, and starts again what ends. Ctrl-C stops everything."""

    servers: Annotated[
        tuple[str, ...],
        Meta(description="model servers, each http://HOST:PORT; or --endpoints-file", extra={"argument": "URL…"}),
    ] = ()
    endpoints_file: Annotated[
        str, Meta(description="endpoints and resources as for the watcher, whose changes are followed")
    ] = ""
    config_file: Annotated[
        str,
        Meta(
            description="an EndpointPickerConfig, whose changes are followed; default: one that names three endpoints"
        ),
    ] = ""
    host: Annotated[
        str, Meta(min_length=1, description="IP address for clients; 0.0.0.0: every address of this machine")
    ] = LOOPBACK
    port: Annotated[int, Meta(ge=1, le=65535, description="port for clients")] = ENVOY_PORT
    pickers: Annotated[int, Meta(ge=1, le=64, description="number of pickers; each uses up to one core")] = 2
    collectors: Annotated[int, Meta(ge=1, le=64, description="number of collectors")] = 1
    tracing: Annotated[
        bool,
        Meta(
            description="have the pickers trace requests with OpenTelemetry; needs"
            " `pip install 'pointsman[local,traces]'`. The standard OTEL_… variables set where the spans go"
        ),
    ] = False
    allow_actions: Annotated[
        bool,
        Meta(
            description="let the console drain and undrain endpoints; it then requires a token, POINTSMAN_CONSOLE_TOKEN"
            " or a new one that is printed"
        ),
    ] = False
    plain: Annotated[
        bool, Meta(description="print the processes' logs instead of a live view; the default without a terminal")
    ] = False
    dry_run: Annotated[
        bool, Meta(description="print a shell script with all files and commands instead of running anything")
    ] = False
    directory: Annotated[
        str, Meta(description="directory for files and logs; default: a new one, which is removed at the end")
    ] = ""
