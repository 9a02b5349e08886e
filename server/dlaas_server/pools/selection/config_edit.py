"""Edit of one table of a `config.toml` that leaves comments and all other keys as they are."""

from __future__ import annotations

from collections.abc import Mapping

from dlaas_server.pools.kubernetes.api import KubernetesMissing

__all__ = ["with_table"]


def with_table(text: str, table: str, values: Mapping[str, str | bool | None]) -> str:
    """Return the text with these values in a top-level table. None removes a key.

    Raises KubernetesMissing if the packages of that extra are not installed.
    """
    try:
        import tomlkit  # a package of the extra `kubernetes`
    except ImportError as error:
        raise KubernetesMissing from error
    document = tomlkit.parse(f"{text.rstrip()}\n" if text.strip() else "")
    if table not in document:
        if document.body:
            document.add(tomlkit.nl())
        document.add(table, tomlkit.table())
    section = document[table]
    assert isinstance(section, dict), "the configuration was valid before"
    for key, value in values.items():
        if value is None:
            section.pop(key, None)
        else:
            section[key] = value
    return tomlkit.dumps(document)
