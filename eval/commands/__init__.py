"""The commands of ``replan``, a file each. They import what is slow to import inside their functions.

A command returns a dictionary of plain values: what ``--json`` prints (see :mod:`..cli`).
"""

from __future__ import annotations

import click

json_option = click.option("--json", is_flag=True, expose_value=False, help="End stdout with one line of JSON.")
