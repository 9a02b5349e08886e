"""Every code block of the documentation is well-formed; `test_pages.py` runs them."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from dlaas_server.pools.config import CONFIG_FILE, load_config
from docs.generate.commands import top_parser, train_parser, verbs
from jupyter_dlaas.kernel.magics import VERBS
from jupyter_dlaas.kernel.options import NotSubmitted, parse
from tests.docs.blocks import ROOT, Block, blocks, is_output, pages

LANGUAGES = {"ipython3", "python", "shell", "toml", "text", "json", "diff", "yaml"}
ALL = [block for path in pages() for block in blocks(path)]


def of(*languages: str) -> list[object]:
    """Return the blocks of these languages as parameters of a test."""
    return [pytest.param(block, id=block.place) for block in ALL if block.language in languages]


def commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of each `jupyter dlaas` and `%dlaas` command of a block."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        line = line.strip()
        if line.startswith(("jupyter dlaas", "%dlaas ")):
            head = re.split("[|>]", line)[0] if block.language == "shell" else line
            yield shlex.split(head, comments=block.language == "shell")


def test_every_block_names_a_known_language() -> None:
    assert [block.place for block in ALL if block.language not in LANGUAGES] == []


def test_each_page_ends_its_fences() -> None:
    assert [str(path) for path in pages() if path.read_text(encoding="utf-8").count("\n```") % 2] == []


@pytest.mark.parametrize("block", of("shell", "ipython3"))
def test_commands_parse(block: Block) -> None:
    for words in commands(block):
        words = words[2:] if words[0] == "jupyter" else words[1:]
        before = words[: words.index("--")] if "--" in words else words
        if before and before[0] in verbs():
            is_magic = "ipython3" in block.language
            assert not is_magic or before[0] in VERBS, f"{block.place}: %dlaas has no verb {before[0]}"
            top_parser().parse_args(before)  # exits, and so fails the test, on an option that does not exist
        else:
            assert before in ([], ["--help"], ["--version"]), f"{block.place}: no verb in {before}"


@pytest.mark.parametrize("block", of("ipython3", "python"))
def test_cells_parse(block: Block) -> None:
    lines = block.text.splitlines(keepends=True)
    if lines[0].startswith("%%train"):
        try:
            parse(train_parser(), lines[0].removeprefix("%%train"))
        except NotSubmitted:
            assert block.output is not None, f"{block.place} does not show what is wrong with it"
        lines = lines[1:]
    ast.parse(TransformerManager().transform_cell("".join(lines)))


@pytest.mark.parametrize("block", of("toml"))
def test_configurations_load(block: Block, tmp_path: Path) -> None:
    (tmp_path / CONFIG_FILE).write_text(block.text, encoding="utf-8")

    load_config(tmp_path)


def test_blocks_that_are_not_run_are_few() -> None:
    left_out = [block for block in ALL if block.not_run]
    can_run = [block for block in ALL if block.language in ("ipython3", "python", "shell")]

    assert len(left_out) <= len(can_run) // 4, [f"{block.place}: {block.not_run}" for block in left_out]


def test_shown_output_allows_other_numbers_and_gaps() -> None:
    assert is_output("loss 0.5\n…\nend", "loss 12\nmore\n  end\n")
    assert is_output("a … b", "a\nb")
    assert not is_output("loss 0.5", "accuracy 0.5")


@pytest.mark.parametrize("path", pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pictures_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    pictures = re.findall(r"(?:\{image\} |src(?:set)?=\")([^\s\"]+)", text)

    assert [name for name in pictures if not (path.parent / name).exists()] == []


def test_readme_fits_on_a_screen_and_a_half() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 110
