"""Calls the plugins that act on responses and on the end of requests.

A configuration's plugins are `ResponsePlugins`; each scheduled request has `ResponseHooks`, but only if there are any.
So a request outlives a change of the configuration with the plugins that saw it first.
"""

from collections.abc import Iterable

from services.picker.request import Headers, Refusal
from services.picker.responses.usage import Usage
from services.picker.scheduling.checks import check_headers, check_metadata
from services.picker.scheduling.cycle import Cycle, OnPluginFailure
from services.picker.scheduling.interfaces import CompletionProcessor, ResponseBodyProcessor, ResponseHeaderProcessor
from services.picker.scheduling.record import Exchange, PluginFailure, ProfileRun
from shared.plugin import Plugin, Role
from shared.plugin_failures import reason_of


class ResponsePlugins:
    """The plugins of one configuration, by what they act on, each in the order of the document."""

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        listed = tuple(plugins)
        self.headers = tuple(each for each in listed if isinstance(each, ResponseHeaderProcessor))
        self.bodies = tuple(each for each in listed if isinstance(each, ResponseBodyProcessor))
        self.chunks = tuple(each for each in self.bodies if each.EVERY_CHUNK)
        self.completions = tuple(each for each in listed if isinstance(each, CompletionProcessor))

    def __bool__(self) -> bool:
        return bool(self.headers or self.bodies or self.completions)

    def begin(
        self, cycle: Cycle, runs: dict[str, ProfileRun], primary: str, refusal: Refusal | None
    ) -> "ResponseHooks | None":
        """The calls for a request; None for one for which nothing was picked."""
        run = runs.get(primary)
        if run is None or not run.picked:
            return None
        endpoints = cycle.layout.endpoints
        exchange = Exchange(
            request_id=cycle.request.id,
            model=cycle.model,
            priority=cycle.priority,
            picked=tuple([endpoints[row] for row in run.picked]),
            profiles={name: tuple([endpoints[row] for row in each.picked]) for name, each in runs.items()},
            refusal=refusal,
            remembered=cycle.remembered,
        )
        return ResponseHooks(self, exchange, cycle.failed)

    def __repr__(self) -> str:
        counts = f"{len(self.headers)} of headers, {len(self.bodies)} of bodies, {len(self.completions)} of completion"
        return f"<ResponsePlugins {counts}>"


class ResponseHooks:
    """The calls for one request. They never raise: a plugin that fails is noted, and skipped."""

    def __init__(self, plugins: ResponsePlugins, exchange: Exchange, failed: OnPluginFailure) -> None:
        self._plugins = plugins
        self._exchange = exchange
        self._failed = failed
        self._failures: list[PluginFailure] = []
        self._body_began = False
        self.metadata: dict[tuple[str, str], float] = {}
        """Numbers for the proxy, by namespace and name."""
        self.reads_headers = bool(plugins.headers)
        """Whether a plugin reads the response's headers."""
        self.reads_body = bool(plugins.bodies)
        """Whether a plugin wants to know how the body comes."""
        self.reads_chunks = bool(plugins.chunks)
        """Whether it wants to know of every chunk."""

    def headers(
        self, seconds: float, status: int | None, endpoint: str, authority: str | None, headers: Headers
    ) -> dict[str, str]:
        """The response headers have come. Headers to set for the client, those of later plugins over earlier ones."""
        exchange = self._exchange
        exchange.seconds, exchange.status = seconds, status
        exchange.endpoint, exchange.authority = endpoint, authority or ""
        wanted: dict[str, str] = {}
        for plugin in self._plugins.headers:
            try:
                result = plugin.response_headers(exchange, headers)
                check_headers(result)
                wanted.update(result)
            except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
                self._note(plugin, Role.RESPONSE_HEADERS, error)
        return wanted

    def body_began(self, seconds: float, usage: Usage) -> None:
        """The first piece of the body has come."""
        self._body_began = True
        self._body(self._plugins.bodies, seconds, usage, first=True)

    def chunk(self, seconds: float, usage: Usage) -> None:
        """A further piece has come, and the body goes on."""
        self._body(self._plugins.chunks, seconds, usage)

    def completed(self, seconds: float, usage: Usage, *, aborted: bool) -> tuple[PluginFailure, ...]:
        """The request is over. Returns the plugins that failed on its response."""
        exchange = self._exchange
        exchange.aborted = aborted
        if self._body_began and not aborted:
            self._body(self._plugins.bodies, seconds, usage, last=True)
        exchange.seconds, exchange.usage = seconds, usage
        for plugin in self._plugins.completions:
            try:
                plugin.completed(exchange)
            except Exception as error:  # noqa: BLE001 - as above
                self._note(plugin, Role.COMPLETION, error)
        return tuple(self._failures)

    def _body(
        self,
        plugins: tuple[ResponseBodyProcessor, ...],
        seconds: float,
        usage: Usage,
        *,
        first: bool = False,
        last: bool = False,
    ) -> None:
        exchange = self._exchange
        exchange.seconds, exchange.usage = seconds, usage
        for plugin in plugins:
            try:
                numbers = plugin.response_body(exchange, first=first, last=last)
                if numbers and last:
                    check_metadata(numbers)
                    self.metadata.update(numbers)
            except Exception as error:  # noqa: BLE001 - as above
                self._note(plugin, Role.RESPONSE_BODY, error)

    def _note(self, plugin: Plugin, role: Role, error: Exception) -> None:
        """Each plugin and role once: a long response may have many chunks."""
        if not any((known.plugin, known.role) == (plugin.name, role.value) for known in self._failures):
            self._failures.append(PluginFailure(plugin.name, role.value, reason_of(error)))
        self._failed(plugin.name, error, self._exchange.request_id)

    def __repr__(self) -> str:
        return f"<ResponseHooks of {self._exchange.request_id!r}: {self._plugins!r}>"
