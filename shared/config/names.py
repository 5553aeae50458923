"""Resolves the names in a document to its plugins, and reports names without a plugin."""

from shared.config.loaded import PluginSpec
from shared.config.problems import Problems, show
from shared.plugin import Registry, Role


class Names:
    """The plugins of a document by name. Names of invalid plugins are known too: referring to one is no second
    problem."""

    def __init__(self, registry: Registry, problems: Problems, *, nameless: bool, incomplete: bool) -> None:
        self.plugins: dict[str, PluginSpec] = {}
        self.broken: set[str] = set()
        """Names whose entries have problems."""
        self.incomplete = incomplete
        """Some plugin or source of the document wasn't understood, so nothing can be said to be missing."""
        self._registry = registry
        self._problems = problems
        self._nameless = nameless

    def known(self, name: str) -> bool:
        return name in self.plugins or name in self.broken

    def find(self, name: str, path: str) -> PluginSpec | None:
        """The plugin of that name. None where there is none, which is a problem unless it can't be known."""
        spec = self.plugins.get(name)
        if not name:
            self._problems.error(path, "required, and missing")
        elif spec is None and name not in self.broken and not self._nameless:
            listed = "; list it under plugins" if self._registry.find(name) else self._problems.hint(name, self.plugins)
            self._problems.error(path, f"{show(name)} is no plugin's name{listed}")
        return spec

    def resolve(self, name: str, role: Role, path: str) -> str | None:
        """The name if a plugin of that name plays the role; else a problem, and None."""
        spec = self.find(name, path)
        if spec is not None and role in spec.kind.ROLES:
            return name
        self.incomplete = True
        if spec is not None:
            self._problems.error(path, f"{show(name)} is of type {spec.kind.TYPE}, which is no {role.value}")
        return None

    def __repr__(self) -> str:
        return f"<Names {len(self.plugins)} plugins, {len(self.broken)} broken>"
