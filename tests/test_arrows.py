"""The arrows of the house are a list of what is allowed."""

from __future__ import annotations

from tests.arrows import wrong_imports

ARROWS = [
    "jupyter_dlaas.api: client, protocol",
    "jupyter_dlaas.client: protocol | tornado",
    "jupyter_dlaas.protocol:",
    "dlaas_server.core: protocol",
    "dlaas_server.pools: dlaas_server.core",
    "dlaas_server.pools.devices: dlaas_server.pools | pynvml",
]


def test_an_arrow_in_the_list_is_allowed() -> None:
    assert wrong_imports(ARROWS, [("jupyter_dlaas.api", "jupyter_dlaas.client")]) == []


def test_an_arrow_that_is_not_in_the_list_is_named() -> None:
    wrong = wrong_imports(ARROWS, [("jupyter_dlaas.client", "jupyter_dlaas.api")])

    assert wrong == ["jupyter_dlaas.client -> jupyter_dlaas.api"]


def test_a_part_may_import_its_own_modules_and_those_of_an_allowed_part() -> None:
    imports = [
        ("dlaas_server.pools.paths", "dlaas_server.pools.base"),
        ("dlaas_server.pools.base", "dlaas_server.core.model"),
        ("dlaas_server.pools.devices.nvml", "dlaas_server.pools.base"),
    ]

    assert wrong_imports(ARROWS, imports) == []


def test_the_standard_library_is_free_and_others_are_asked_for() -> None:
    imports = [("jupyter_dlaas.client", "json"), ("jupyter_dlaas.client", "tornado"), ("jupyter_dlaas.api", "tornado")]

    assert wrong_imports(ARROWS, imports) == ["jupyter_dlaas.api -> tornado (not one of ours)"]


def test_an_inner_part_with_an_entry_of_its_own_is_not_the_outer_one() -> None:
    wrong = wrong_imports(ARROWS, [("dlaas_server.pools.base", "pynvml")])

    assert wrong == ["dlaas_server.pools.base -> pynvml (not one of ours)"]


def test_a_root_package_in_the_list_means_itself_and_not_what_is_in_it() -> None:
    arrows = ["jupyter_dlaas.wire: jupyter_dlaas", "jupyter_dlaas.api:"]
    imports = [("jupyter_dlaas.wire", "jupyter_dlaas"), ("jupyter_dlaas.wire", "jupyter_dlaas.api")]

    assert wrong_imports(arrows, imports) == ["jupyter_dlaas.wire -> jupyter_dlaas.api"]


def test_a_new_module_must_be_given_a_place() -> None:
    wrong = wrong_imports(ARROWS, [("dlaas_server.misplaced", "json")])

    assert wrong == ["dlaas_server.misplaced has no place in the house: give it an entry in pyproject.toml, arrows"]
