"""House rules about language find what they refuse and accept plain text."""

from __future__ import annotations

import pytest

from tests.house import language_faults, long_names


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("told = 1", "private word 'told'"),
        ("class SocketDoor: ...", "private word 'door'"),
        ("a = 'the job goes on'", "private phrase 'goes on'"),
        ("a = f'{b} is no valid name'", "private phrase 'is no valid name'"),
        ("# nobody waits", "private word 'nobody'"),
        ('"""How it works."""', "begins with 'How'"),
        ('def f():\n    """Which one."""', "begins with 'Which'"),
    ],
)
def test_private_language_is_found(text: str, fault: str) -> None:
    (found,) = {what for _, what in language_faults(text)}
    assert fault in found


@pytest.mark.parametrize(
    "text",
    [
        '"""Endpoints of a pool."""\nendpoint = 1',
        "a = 'training continues; the name is no longer used'",
        "# The job waits for devices.",
        'def f():\n    """Return the queue."""',
    ],
)
def test_plain_language_is_accepted(text: str) -> None:
    assert not [*language_faults(text)]


def test_names_of_tests_with_more_than_ten_words_are_found() -> None:
    ten = "def test_a_b_c_d_e_f_g_h_i_j() -> None: ..."
    eleven = "async def test_a_b_c_d_e_f_g_h_i_j_k() -> None: ..."

    assert list(long_names(f"{ten}\n    {eleven}\n")) == ["test_a_b_c_d_e_f_g_h_i_j_k"]
