"""Transport of requests by the `kubernetes` package. The only module that imports it, and only when connecting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, cast

from dlaas_server.pools.kubernetes.api import SERVICE_ACCOUNT, Answer, ApiUnreachable, KubernetesMissing

__all__ = ["chosen_context", "open_transport"]

CONNECTIONS: Final = 16


class ClientTransport:
    """Connections of one `kubernetes.client.ApiClient`."""

    def __init__(self, configuration: Any) -> None:
        from kubernetes.client import ApiClient

        configuration.connection_pool_maxsize = CONNECTIONS
        configuration.retries = False  # a retry by urllib3 would hide what happened
        self._configuration = configuration
        self._client = ApiClient(configuration)
        self._pool = self._client.rest_client.pool_manager
        self.server = str(configuration.host)

    def send(
        self, method: str, target: str, body: bytes | None, content_type: str, timeout: tuple[float, float]
    ) -> Answer:
        """Send a request. Raises OSError without an answer."""
        import urllib3

        headers = {"Accept": "application/json", "Content-Type": content_type, "User-Agent": "jupyter_dlaas"}
        for setting in self._configuration.auth_settings().values():  # refreshes tokens that have a refresh hook
            if setting["in"] == "header" and setting["value"]:
                headers[setting["key"]] = setting["value"]
        try:
            answer = self._pool.request(
                method,
                self.server.rstrip("/") + target,
                body=body,
                headers=headers,
                preload_content=False,
                timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
                retries=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        return cast(Answer, answer)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()


def open_transport(kubeconfig: str | None, context: str | None) -> ClientTransport:
    """Load credentials: the pod's service account inside a cluster, otherwise the kubeconfig.

    Raises KubernetesMissing and ApiUnreachable.
    """
    try:
        from kubernetes import client, config
    except ImportError as error:
        raise KubernetesMissing from error
    configuration = client.Configuration()
    try:
        if kubeconfig is None and context is None and SERVICE_ACCOUNT.exists():
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_kube_config(  # type: ignore[no-untyped-call]
                config_file=kubeconfig, context=context, client_configuration=configuration
            )
    except (config.ConfigException, OSError, ValueError) as error:
        raise ApiUnreachable(_unusable(_files(kubeconfig), context, error)) from error
    return ClientTransport(configuration)


def _files(kubeconfig: str | None) -> str:
    """Return the absolute paths of the kubeconfig that is used, in the form of KUBECONFIG."""
    named = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    files = (os.path.expanduser(file) for file in named.split(os.pathsep) if file)  # noqa: PTH111 - may have no home
    return os.pathsep.join(str(Path(file).absolute()) for file in files)


def _unusable(files: str, context: str | None, error: Exception) -> str:
    """Return why no credentials were found. The client's own message does not say that a file is missing."""
    named = f" with context {context}" if context else ""
    if any(Path(file).exists() for file in files.split(os.pathsep)):
        reason = str(error)
    else:
        reason = "the file does not exist; name a kubeconfig with --kubeconfig FILE or KUBECONFIG"
    return f"no usable credentials in {files}{named}: {reason}"


def chosen_context(kubeconfig: str | None, context: str | None) -> tuple[str, str] | None:
    """Return the kubeconfig and the context that a connection would use now; None for a pod's service account.

    Raises KubernetesMissing and ApiUnreachable.
    """
    if kubeconfig is None and context is None and SERVICE_ACCOUNT.exists():
        return None
    try:
        from kubernetes import config
    except ImportError as error:
        raise KubernetesMissing from error
    files = _files(kubeconfig)
    try:
        contexts, current = config.list_kube_config_contexts(files)  # type: ignore[no-untyped-call]
    except (config.ConfigException, OSError, ValueError) as error:
        raise ApiUnreachable(_unusable(files, None, error)) from error
    names = [str(one["name"]) for one in contexts]
    if context is not None and context not in names:
        raise ApiUnreachable(f"{files} has no context {context}; it has {', '.join(sorted(names))}")
    return files, context or str(current["name"])
