"""Import contracts: what they find."""

from __future__ import annotations

from tests.arrows import circle, named_modules, unused, wrong_imports

PACKAGES = {"jupyter_dlaas", "jupyter_dlaas.client", "jupyter_dlaas.wire", "dlaas_server.a", "dlaas_server.a.b"}


def wrong(package: str, allowed: list[str], *imports: tuple[str, str], libraries: tuple[str, ...] = ()) -> list[str]:
    return wrong_imports(package, allowed, libraries, imports, PACKAGES)


def test_import_of_an_allowed_package_is_kept() -> None:
    found = wrong(
        "jupyter_dlaas.client",
        ["jupyter_dlaas.wire"],
        ("jupyter_dlaas.client.http", "jupyter_dlaas.wire.codec"),
        ("jupyter_dlaas.client.http", "jupyter_dlaas.client.discovery"),
    )

    assert found == []


def test_import_that_is_not_allowed_is_named() -> None:
    found = wrong("jupyter_dlaas.wire", [], ("jupyter_dlaas.wire.codec", "jupyter_dlaas.client.http"))

    assert found == ["jupyter_dlaas.wire.codec -> jupyter_dlaas.client.http"]


def test_inner_package_needs_an_allowance_of_its_own() -> None:
    found = wrong("jupyter_dlaas.client", ["dlaas_server.a"], ("jupyter_dlaas.client.x", "dlaas_server.a.b.c"))

    assert found == ["jupyter_dlaas.client.x -> dlaas_server.a.b.c"]


def test_root_package_allows_only_its_own_init() -> None:
    imports = [("jupyter_dlaas.wire.codec", "jupyter_dlaas"), ("jupyter_dlaas.wire.codec", "jupyter_dlaas.client.http")]

    assert wrong("jupyter_dlaas.wire", ["jupyter_dlaas"], *imports) == [
        "jupyter_dlaas.wire.codec -> jupyter_dlaas.client.http"
    ]


def test_libraries_are_listed_and_the_standard_library_is_free() -> None:
    imports = [("jupyter_dlaas.client.http", "json"), ("jupyter_dlaas.client.http", "tornado")]

    assert wrong("jupyter_dlaas.client", [], *imports) == ["jupyter_dlaas.client.http -> tornado (a library)"]
    assert wrong("jupyter_dlaas.client", [], *imports, libraries=("tornado",)) == []


def test_allowance_that_nothing_uses_is_reported() -> None:
    found = unused("jupyter_dlaas.client", ["jupyter_dlaas.wire"], ["tornado"], [], PACKAGES)

    client = "jupyter_dlaas.client imports nothing of"
    assert found == [f"{client} jupyter_dlaas.wire", f"{client} tornado"]


def test_circle_of_packages_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def test_modules_named_in_strings_are_found() -> None:
    source = 'import_module("jupyter_dlaas.client")\nprint("jupyter_dlaas.client is a package", "jupyter_dlaas")'

    assert named_modules(source, PACKAGES) == ["jupyter_dlaas.client"]
