"""Scenarios and their names."""

import importlib
import sys
import tomllib

from . import pairwise


class Scenario:
    """A function to run with its parameters, under a hard time limit."""

    def __init__(self, name, function, timeout, weight, parameters):
        self.name = name
        self.function = function
        self.timeout = timeout
        self.weight = weight
        self.parameters = parameters


_all = []


def scenario(name, timeout=60, weight=1, each=None):
    """Registers a function. `each` is a list of parameter dicts: one scenario per entry, named after its values. `weight` 2
    asks for the whole machine."""

    def register(function):
        for parameters in each or [{}]:
            suffix = "".join(f"/{value}" for value in parameters.values())
            _all.append(Scenario(f"{name}{suffix}", function, timeout, weight, parameters))
        return function

    return register


def matrix(path, soak):
    """Rows of matrix.toml: the full product, or a pairwise selection of it."""
    dimensions = tomllib.loads(path.read_text())
    impossible = dimensions.pop("impossible", [])

    def allowed(row):
        return not any(all(row[key] in values for key, values in rule.items()) for rule in impossible)

    return list(pairwise.full(dimensions, allowed)) if soak else pairwise.pairwise(dimensions, allowed)


def load(here, soak):
    """All scenarios."""
    sys.modules["harness.registry"].rows = matrix(here / "matrix.toml", soak)
    for path in sorted((here / "scenarios").glob("[a-z]*.py")):
        importlib.import_module(f"scenarios.{path.stem}")
    return _all
