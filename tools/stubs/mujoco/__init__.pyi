# MuJoCo's bindings are compiled and come without types; without this, each of their names would be an error.
from typing import Any

def __getattr__(name: str) -> Any: ...
