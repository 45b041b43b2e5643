"""What every test may rely on: what the command line sets before MuJoCo and the numeric libraries are imported."""

from replan.eval.cli import set_defaults

set_defaults()
