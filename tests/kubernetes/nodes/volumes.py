"""Volumes and environment variables of a pod: ConfigMaps, Secrets, tokens, fields of the pod, scratch folders."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.kubernetes.api import Api, ApiError, Json, path_of

__all__ = ["ConfigError", "MountError", "container_environment", "expand", "prepare_volume"]

REFERENCE: Final = re.compile(r"\$(\$|\(([^()]+)\))")


class MountError(Exception):
    """A volume cannot be prepared now; the kubelet tries again."""


class ConfigError(Exception):
    """A container's environment refers to something that does not exist; the kubelet tries again."""


# ---- volumes ---------------------------------------------------------------------------------------------------------


async def prepare_volume(api: Api, pod: Json, volume: Json, folder: Path, pod_ip: str) -> Json | None:
    """Return what to mount for a volume, prepared in `folder`; None if the volume is a file system in memory."""
    _make_folder(folder)
    if (empty := volume.get("emptyDir")) is not None:
        if empty.get("medium") == "Memory":
            return {"kind": "tmpfs", "options": "mode=1777"}
        _make_folder(folder, mode=0o777)
        return {"kind": "bind", "source": str(folder)}
    if (host := volume.get("hostPath")) is not None:
        return {"kind": "bind", "source": host["path"]}
    if (claim := volume.get("persistentVolumeClaim")) is not None:
        return {"kind": "bind", "source": await _claimed(api, pod, claim["claimName"])}
    files = await _volume_files(api, pod, volume, pod_ip)
    _write_files(folder, files)
    return {"kind": "bind", "source": str(folder), "read_only": True}


async def _claimed(api: Api, pod: Json, name: str) -> str:
    """Return the folder of this machine behind a claim that is bound to a volume of the kind `hostPath`."""
    try:
        claim = await api.get("persistentvolumeclaims", pod["metadata"]["namespace"], name)
        volume = await api.get("persistentvolumes", None, claim["spec"]["volumeName"])
    except (ApiError, KeyError) as error:
        raise MountError(f'claim "{name}" is not bound: {error}') from error
    path: str = volume["spec"]["hostPath"]["path"]
    return path


async def _volume_files(api: Api, pod: Json, volume: Json, pod_ip: str) -> dict[str, tuple[bytes, int]]:
    """Return contents and modes by relative path."""
    if "projected" in volume:
        source = volume["projected"]
        files: dict[str, tuple[bytes, int]] = {}
        for part in source["sources"]:
            files |= await _source_files(api, pod, part, source.get("defaultMode", 0o644), pod_ip)
        return files
    for kind in ("configMap", "secret", "downwardAPI"):
        if kind in volume:
            mode = volume[kind].get("defaultMode", 0o644)
            return await _source_files(api, pod, {kind: volume[kind]}, mode, pod_ip)
    kinds = sorted(set(volume) - {"name"})
    raise MountError(f'process nodes have no volumes of the kind {", ".join(kinds)} (volume "{volume["name"]}")')


async def _source_files(api: Api, pod: Json, source: Json, mode: int, pod_ip: str) -> dict[str, tuple[bytes, int]]:
    namespace = pod["metadata"]["namespace"]
    if "serviceAccountToken" in source:
        wanted = source["serviceAccountToken"]
        return {wanted["path"]: ((await _token(api, pod, wanted)).encode(), mode)}
    if "downwardAPI" in source:
        items = source["downwardAPI"].get("items", [])
        return {item["path"]: (_field(pod, item["fieldRef"]["fieldPath"], pod_ip).encode(), mode) for item in items}
    kind = "configMap" if "configMap" in source else "secret"
    reference = source[kind]
    name = reference.get("name") or reference["secretName"]
    data = await _data(api, kind, namespace, name)
    if data is None:
        if reference.get("optional"):
            return {}
        raise MountError(f'{kind.lower()} "{name}" not found')
    if "items" not in reference:
        return {key: (value, mode) for key, value in data.items()}
    files = {}
    for item in reference["items"]:
        if item["key"] in data:
            files[item["path"]] = (data[item["key"]], item.get("mode", mode))
        elif not reference.get("optional"):
            raise MountError(f"references non-existent {kind.lower()} key: {item['key']}")
    return files


async def _data(api: Api, kind: str, namespace: str, name: str) -> dict[str, bytes] | None:
    """Return the contents of a ConfigMap or Secret, or None if it does not exist."""
    try:
        found = await api.get(f"{kind.lower()}s", namespace, name)
    except ApiError as error:
        # The node authorizer learns of a reference a moment after the pod was bound.
        if error.status in (403, 404):
            return None
        raise
    if kind == "secret":
        return {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
    texts = {key: value.encode() for key, value in (found.get("data") or {}).items()}
    return texts | {key: base64.b64decode(value) for key, value in (found.get("binaryData") or {}).items()}


async def _token(api: Api, pod: Json, wanted: Json) -> str:
    metadata = pod["metadata"]
    bound = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
    spec: Json = {"expirationSeconds": wanted.get("expirationSeconds", 3600), "boundObjectRef": bound}
    if "audience" in wanted:
        spec["audiences"] = [wanted["audience"]]
    account = pod["spec"].get("serviceAccountName", "default")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    try:
        answer = await api.request("POST", path_of("serviceaccounts", metadata["namespace"], account, "token"), body)
    except ApiError as error:
        raise MountError(f"failed to fetch token: {error}") from error
    token: str = answer["status"]["token"]
    return token


def _make_folder(folder: Path, mode: int = 0o755) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(mode)


def _write_files(folder: Path, files: Mapping[str, tuple[bytes, int]]) -> None:
    """Write files as the kubelet does: in a folder behind a symbolic link that an update would replace."""
    version = folder / "..version"
    for path, (content, mode) in files.items():
        target = version / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(mode)
    version.mkdir(exist_ok=True)
    (folder / "..data").symlink_to("..version")
    for first in sorted({Path(path).parts[0] for path in files}):
        (folder / first).symlink_to(f"..data/{first}")


# ---- environment -----------------------------------------------------------------------------------------------------


async def container_environment(
    api: Api, pod: Json, container: Json, environment: Mapping[str, str], pod_ip: str
) -> dict[str, str]:
    """Return a container's environment variables. Raises ConfigError."""
    result = dict(environment)
    for source in container.get("envFrom", []):
        for kind in ("configMap", "secret"):
            if reference := source.get(f"{kind}Ref"):
                data = await _referenced(api, pod, kind, reference)
                result |= {source.get("prefix", "") + key: value.decode() for key, value in data.items()}
    for variable in container.get("env", []):
        name = variable["name"]
        if "valueFrom" not in variable:
            result[name] = expand(variable.get("value", ""), result)
            continue
        value = await _value_from(api, pod, container, variable["valueFrom"], pod_ip)
        if value is not None:
            result[name] = value
    return result


async def _referenced(api: Api, pod: Json, kind: str, reference: Json) -> dict[str, bytes]:
    data = await _data(api, kind, pod["metadata"]["namespace"], reference["name"])
    if data is None and not reference.get("optional"):
        raise ConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    return data or {}


async def _value_from(api: Api, pod: Json, container: Json, source: Json, pod_ip: str) -> str | None:
    if "fieldRef" in source:
        return _field(pod, source["fieldRef"]["fieldPath"], pod_ip)
    if "resourceFieldRef" in source:
        group, resource = source["resourceFieldRef"]["resource"].split(".", 1)
        value: str = container.get("resources", {}).get(group, {}).get(resource, "0")
        return value
    for kind in ("configMap", "secret"):
        if reference := source.get(f"{kind}KeyRef"):
            data = await _referenced(api, pod, kind, reference)
            if reference["key"] in data:
                return data[reference["key"]].decode()
            if not reference.get("optional"):
                where = f"{pod['metadata']['namespace']}/{reference['name']}"
                raise ConfigError(f"couldn't find key {reference['key']} in {kind} {where}")
            return None
    raise ConfigError(f"process nodes have no values from {', '.join(source)}")


def _field(pod: Json, path: str, pod_ip: str) -> str:
    metadata = pod["metadata"]
    if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path):
        return str(metadata.get(match[1], {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        values = metadata.get(path.split(".")[1], {})
        return "\n".join(f'{key}="{value}"' for key, value in sorted(values.items()))
    if path in ("status.podIP", "status.podIPs"):
        return pod_ip
    found: Any = pod
    for part in path.split("."):
        found = found.get(part, "")
    return str(found)


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace $(NAME) by the variable's value; $$ stands for a dollar sign, unknown names stay as they are."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] == "$" else environment.get(match[2], match[0])

    return REFERENCE.sub(replacement, text)


def expand_all(texts: Iterable[str], environment: Mapping[str, str]) -> list[str]:
    return [expand(text, environment) for text in texts]
