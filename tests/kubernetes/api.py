"""A client of the Kubernetes API for tests: whatever a test wants to do to a cluster, by documents.

Where a kind is found is asked of the server. Documents are judged strictly: a field that a kind doesn't have is an
error of the test.
"""

import json
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from msgspec import Struct

from tests.waiting import eventually

Object = dict[str, Any]
Document = Mapping[str, Any]

MANAGER = "tests"
"""Whose fields those are that tests apply."""
_MERGE, _APPLY = "application/merge-patch+json", "application/apply-patch+yaml"
_STRICT = {"fieldValidation": "Strict"}
_TIMEOUT = 60.0


class ApiError(Exception):
    """The server refused a request. `status` is HTTP's code, `reason` Kubernetes' word for it."""

    def __init__(self, what: str, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        super().__init__(f"{what}: {status} {reason}: {message}")


class Kind(Struct, frozen=True):
    """A kind and where the server has it."""

    version: str
    name: str
    plural: str
    namespaced: bool

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        root = "/apis" if "/" in self.version else "/api"
        middle = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        end = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}/{self.version}{middle}/{self.plural}{end}"


class Api:
    """The API with one token's rights. An async context manager; belongs to the event loop that it is used in.

    Everywhere: `version` is an apiVersion (`v1`, `apps/v1`), an empty `namespace` the document's own, else `default`;
    what is returned is the object as the server has it. Raises ApiError when it refuses, httpx.TransportError when it
    isn't there.
    """

    def __init__(self, url: str, authority: Path, token: str) -> None:
        self.url = url
        context = ssl.create_default_context(cafile=str(authority))
        self._client = httpx.AsyncClient(
            base_url=url,
            verify=context,
            headers={"authorization": f"Bearer {token}"},
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=32),
            trust_env=False,
        )
        self._kinds: dict[tuple[str, str], Kind] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    # ---- objects

    async def create(self, document: Document, namespace: str = "") -> Object:
        kind, namespace, _ = await self._place(document, namespace)
        return await self._send("POST", kind.path(namespace), document, params=_STRICT)

    async def apply(
        self,
        document: Document,
        namespace: str = "",
        *,
        manager: str = MANAGER,
        dry_run: bool = False,
        subresource: str = "",
    ) -> Object:
        """Server-side apply: make it if it isn't there, and own the fields that the document names."""
        kind, namespace, name = await self._place(document, namespace)
        params = {**_STRICT, "fieldManager": manager, "force": "true"}
        if dry_run:
            params["dryRun"] = "All"
        path = kind.path(namespace, name, subresource)
        return await self._send("PATCH", path, document, params=params, content=_APPLY)

    async def patch(
        self, version: str, kind: str, name: str, patch: Any, namespace: str = "default", *, subresource: str = ""
    ) -> Object:
        """Merge into it."""
        path = (await self.kind(version, kind)).path(namespace, name, subresource)
        return await self._send("PATCH", path, patch, params=_STRICT, content=_MERGE)

    async def get(self, version: str, kind: str, name: str, namespace: str = "default") -> Object:
        place = await self.kind(version, kind)
        return await self._send("GET", place.path(namespace, name))

    async def list(self, version: str, kind: str, namespace: str = "default") -> Object:
        """The whole list; of all namespaces where `namespace` is empty."""
        place = await self.kind(version, kind)
        return await self._send("GET", place.path(namespace))

    async def delete(
        self, version: str, kind: str, name: str, namespace: str = "default", *, grace_period: int | None = None
    ) -> Object:
        place = await self.kind(version, kind)
        options = {} if grace_period is None else {"gracePeriodSeconds": grace_period}
        return await self._send("DELETE", place.path(namespace, name), options)

    async def evict(self, pod: str, namespace: str) -> bool:
        """As `kubectl drain` does it. False while a PodDisruptionBudget forbids it."""
        document = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        path = (await self.kind("v1", "Pod")).path(namespace, pod, "eviction")
        try:
            await self._send("POST", path, document)
        except ApiError as error:
            if error.status != 429:
                raise
            return False
        return True

    # ---- around objects

    async def kind(self, version: str, kind: str) -> Kind:
        """Where a kind is. Raises ApiError(404) when it isn't served (yet)."""
        if (known := self._kinds.get((version, kind))) is not None:
            return known
        root = "/apis" if "/" in version else "/api"
        for resource in (await self._send("GET", f"{root}/{version}"))["resources"]:
            if "/" not in resource["name"]:
                self._kinds[version, resource["kind"]] = Kind(
                    version, resource["kind"], resource["name"], resource["namespaced"]
                )
        if (version, kind) not in self._kinds:
            raise ApiError(f"{version} {kind}", 404, "NotFound", "the server has no such kind")
        return self._kinds[version, kind]

    async def create_namespace(self) -> str:
        """A new one with a name of its own."""
        made = await self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "test-"}})
        name: str = made["metadata"]["name"]
        return name

    async def install(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Install CustomResourceDefinitions and wait until the server serves their kinds."""
        for definition in definitions:
            await self.apply(definition)
        for definition in definitions:
            await eventually(partial(self._served, definition), "its kind is served", step=0.05)

    async def uninstall(self, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Remove CustomResourceDefinitions, and wait until they are gone with all that they define."""
        for definition in definitions:
            await eventually(partial(self._removed, definition), f"{definition['metadata']['name']} is gone", step=0.05)

    async def _removed(self, definition: Mapping[str, Any]) -> bool:
        try:
            await self.delete(definition["apiVersion"], definition["kind"], definition["metadata"]["name"])
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            return error.status == 404
        return False

    async def _served(self, definition: Mapping[str, Any]) -> bool:
        """Established is said a little before it is true: only a list that is answered shows it."""
        spec = definition["spec"]
        try:
            await self.list(f"{spec['group']}/{spec['versions'][0]['name']}", spec["names"]["kind"], "")
        except ApiError as error:
            if error.status not in (404, 503):
                raise
            return False
        return True

    # ---- accounts

    async def service_account(
        self,
        name: str,
        namespace: str,
        *,
        rules: Sequence[Mapping[str, Any]] = (),
        cluster_rules: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """A ServiceAccount with the rules of a Role and of a ClusterRole, bound to it and in force; its token."""
        await self.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace)
        if rules:
            await self._bind("Role", name, name, namespace, rules)
        if cluster_rules:
            await self._bind("ClusterRole", name, f"{namespace}:{name}", namespace, cluster_rules)
        return await self.token(name, namespace)

    async def token(self, service_account: str, namespace: str) -> str:
        """A token of a ServiceAccount, as the kubelet would mount it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{service_account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        token: str = (await self._send("POST", path, request))["status"]["token"]
        return token

    async def allowed(self, account: str, namespace: str, rule: Mapping[str, Any], *, cluster: bool = False) -> bool:
        """Whether the account may do the first thing that a rule allows, by the server's own word."""
        resource, _, subresource = rule["resources"][0].partition("/")
        attributes = {"group": rule["apiGroups"][0], "verb": rule["verbs"][0], "resource": resource}
        attributes |= {"subresource": subresource, "name": (rule.get("resourceNames") or [""])[0]}
        user = f"system:serviceaccount:{namespace}:{account}"
        spec = {"user": user, "resourceAttributes": {**attributes, "namespace": "" if cluster else namespace}}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        answer = await self._send("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
        return bool(answer["status"]["allowed"])

    async def _bind(
        self, kind: str, account: str, role: str, namespace: str, rules: Sequence[Mapping[str, Any]]
    ) -> None:
        group = "rbac.authorization.k8s.io"
        common = {"apiVersion": f"{group}/v1", "metadata": {"name": role}}
        await self.create({**common, "kind": kind, "rules": list(rules)}, namespace)
        binding = {
            **common,
            "kind": f"{kind}Binding",
            "roleRef": {"apiGroup": group, "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
        }
        await self.create(binding, namespace)
        # a role comes into force when the server's own watch of them has brought it
        in_force = partial(self.allowed, account, namespace, rules[0], cluster=kind == "ClusterRole")
        await eventually(in_force, "it is allowed")

    # ---- HTTP

    async def _place(self, value: Mapping[str, Any], namespace: str) -> tuple[Kind, str, str]:
        kind = await self.kind(value["apiVersion"], value["kind"])
        metadata = value.get("metadata", {})
        return kind, namespace or metadata.get("namespace", "default"), metadata.get("name", "")

    async def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        params: Mapping[str, str] | None = None,
        content: str = "application/json",
    ) -> Object:
        data = None if body is None else json.dumps(body).encode()
        answer = await self._client.request(
            method, path, content=data, params=params, headers={"content-type": content, "accept": "application/json"}
        )
        if answer.is_error:
            raise _error(f"{method} {path}", answer)
        value: Object = answer.json()
        return value


def _error(what: str, answer: httpx.Response) -> ApiError:
    try:
        status = answer.json()
        return ApiError(what, answer.status_code, status.get("reason", ""), status.get("message", ""))
    except ValueError:
        return ApiError(what, answer.status_code, answer.reason_phrase, answer.text.strip()[:500])
