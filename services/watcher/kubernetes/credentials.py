"""The API server's address and our credentials, from a service account or a kubeconfig, by kubernetes-asyncio.

Importing kubernetes-asyncio takes more than half a second and 40 MB: it has a class for every type of the API. Only
`services.watcher.kubernetes.client.connect` imports this module, when it is called, so a watcher that reads files
doesn't. Nothing else of the library is used: its watch ends silently in cases in which we have to list again, and its
models cost far more than the objects.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.client.rest import RESTClientObject
from kubernetes_asyncio.config import kube_config
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.exec_provider import ExecProvider
from kubernetes_asyncio.config.incluster_config import SERVICE_HOST_ENV_NAME, InClusterConfigLoader
from kubernetes_asyncio.config.kube_config import ENV_KUBECONFIG_PATH_SEPARATOR, load_kube_config

from services.watcher.kubernetes.connections import Transport
from services.watcher.kubernetes.errors import ConfigurationError
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.quantities import format_duration

KILLED = 1.0
"""Seconds that a killed exec plugin gets to exit."""


class ExecPlugin(ExecProvider):
    """A kubeconfig's exec plugin. The library's own class never kills a plugin that doesn't exit in time."""

    async def run(self, previous_response: str | None = None) -> Any:
        """The status of the ExecCredential that it prints: a token, or a certificate and key. Raises
        ConfigException."""
        request = {"apiVersion": self.api_version, "kind": "ExecCredential", "spec": {"interactive": False}}
        process = await asyncio.create_subprocess_exec(
            *self.args,
            env={**self.env, "KUBERNETES_EXEC_INFO": json.dumps(request)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                with suppress(TimeoutError):  # children of its own may keep its output open
                    await asyncio.wait_for(process.communicate(), KILLED)
        if process.returncode:
            message = errors.decode(errors="replace").strip()
            raise ConfigException(f"the exec plugin ended with {process.returncode}{f': {message}' if message else ''}")
        try:
            credential = json.loads(output)
        except ValueError as error:
            raise ConfigException(f"the exec plugin's answer isn't JSON: {error}") from error
        version, status = (
            credential.get(key) if isinstance(credential, dict) else None for key in ("apiVersion", "status")
        )
        if version != self.api_version or not isinstance(status, dict):
            raise ConfigException(
                f"the exec plugin's answer isn't an ExecCredential of {self.api_version} with a status"
            )
        return status


kube_config.ExecProvider = ExecPlugin  # type: ignore[attr-defined]  # the library offers no other way


class Credentials:
    """The API server's address, TLS settings and token. Call `load` again whenever they may have changed."""

    def __init__(self, settings: KubernetesSettings, environ: Mapping[str, str], service_account: Path) -> None:
        self._settings = settings
        self._environ = dict(environ)
        self._service_account = service_account

    @property
    def origin(self) -> str:
        """Where they come from, for people."""
        if not self._settings.kubeconfig and SERVICE_HOST_ENV_NAME in self._environ:
            return f"service account in {self._service_account}"
        context = f", context {self._settings.kubeconfig_context}" if self._settings.kubeconfig_context else ""
        return f"kubeconfig {self._paths}{context}"

    async def load(self) -> Transport:
        """Read the files and run the exec plugin again. Raises ConfigurationError."""
        configuration = await self._configuration()
        try:
            rest = RESTClientObject(configuration)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            files = filter(None, (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file))
            raise ConfigurationError(f"{self.origin}: bad certificates in {', '.join(files)}: {error}") from error

        async def authorization() -> str:
            try:
                return (await configuration.get_api_key_with_prefix("BearerToken") or "").strip()
            except (ConfigException, OSError) as error:
                raise ConfigurationError(f"{self.origin}: the token can't be read: {error}") from error

        return Transport(
            host=configuration.host or "", send=rest.request, authorization=authorization, close=rest.close
        )

    async def _configuration(self) -> Configuration:
        configuration = Configuration()
        # No limit: a request mustn't wait for a watch to end.
        configuration.connection_pool_maxsize = 0
        # Python 3.13 requires key identifiers in certificates, which kubeadm's lack and Kubernetes' clients don't need.
        configuration.disable_strict_ssl_verification = True
        try:
            async with asyncio.timeout(self._settings.kubernetes_credentials_timeout):
                if not self._settings.kubeconfig and SERVICE_HOST_ENV_NAME in self._environ:
                    self._load_service_account(configuration)
                else:
                    await self._load_kubeconfig(configuration)
        except TimeoutError as error:
            limit = format_duration(self._settings.kubernetes_credentials_timeout)
            raise ConfigurationError(f"{self.origin} gave no credentials within {limit}") from error
        except yaml.YAMLError as error:
            raise ConfigurationError(f"{self.origin} isn't YAML: {error}") from error
        except (ConfigException, OSError, ValueError) as error:
            raise ConfigurationError(f"{self.origin} can't be used: {error}") from error
        except (AssertionError, AttributeError, KeyError, TypeError) as error:
            # This is how the library fails for a document of another shape.
            raise ConfigurationError(f"{self.origin} isn't a kubeconfig: {error!r}") from error
        return configuration

    @property
    def _paths(self) -> str:
        home = Path(self._environ.get("HOME", "~")).expanduser()
        return self._settings.kubeconfig or self._environ.get("KUBECONFIG") or str(home / ".kube" / "config")

    def _load_service_account(self, configuration: Configuration) -> None:
        token, authority = self._service_account / "token", self._service_account / "ca.crt"
        InClusterConfigLoader(str(token), str(authority), environ=self._environ).load_and_set(configuration)

    async def _load_kubeconfig(self, configuration: Configuration) -> None:
        if not any(map(os.path.isfile, map(os.path.expanduser, self._paths.split(ENV_KUBECONFIG_PATH_SEPARATOR)))):
            raise ConfigurationError(f"there is no file {self._paths}, and this isn't a pod with a service account")
        await load_kube_config(
            config_file=self._paths,
            context=self._settings.kubeconfig_context or None,
            client_configuration=configuration,
            persist_config=False,  # the file isn't ours
        )

    def __repr__(self) -> str:
        return f"<Credentials of the {self.origin}>"
