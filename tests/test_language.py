"""Words that users' texts do not use, and the width of the help texts."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from replan.eval.cli import replan

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
# House rules of docs and help: plain words of today, and one word per concept.
BANNED = re.compile(
    r"\b(mends?|mended|commonest|by heart|at the wheel|so many|beside it|asked for|pictures?|told)\b",
    re.IGNORECASE,
)
COMMANDS = [replan, *replan.commands.values()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_use_plain_words(page):
    found = [
        f"{number}: {match.group()}"
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1)
        for match in BANNED.finditer(line)
    ]
    assert not found


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_fits_80_columns_and_uses_plain_words(command):
    context = click.Context(command, info_name=f"replan {command.name}", terminal_width=80, max_content_width=80)
    text = command.get_help(context)
    assert max(map(len, text.splitlines())) <= 80
    assert not BANNED.findall(text)


def test_the_list_of_commands_cuts_no_summary():
    context = click.Context(replan, info_name="replan", terminal_width=80, max_content_width=80)
    assert "..." not in replan.get_help(context).partition("Commands:")[2]


@pytest.mark.parametrize("command", replan.commands.values(), ids=lambda command: command.name)
def test_every_option_is_explained(command):
    unexplained = [each.name for each in command.params if isinstance(each, click.Option) and not each.help]
    assert not unexplained
