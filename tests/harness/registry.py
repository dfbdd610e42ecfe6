"""Scenarios and their names."""

import importlib
import sys
import tomllib

from . import pairwise


class Scenario:
    """A function to run with its parameters, under a hard time limit."""

    def __init__(self, name, function, timeout, weight, parameters, memory_mb, public, as_root, cluster):
        self.name = name
        self.function = function
        self.timeout = timeout
        self.weight = weight
        self.parameters = parameters
        self.memory_mb = memory_mb
        self.public = public
        self.as_root = as_root
        self.cluster = cluster


_all = []
# Whether it is `make soak` that runs.
soak = False


def scenario(name, timeout=60, weight=1, each=None, memory_mb=None, public=False, as_root=None, cluster=False, spread=False):
    """Registers a function. `each` is a list of parameter dicts: one scenario per entry, named after its values; with `spread`,
    `make test` runs as few of them as hold each value of each parameter, and `make soak` all. `weight` 2
    asks for the whole machine; `memory_mb` for a memory cgroup with that limit around everything the scenario starts.
    `public`: nothing private: the machine's own /dev/shm and System V segments, as a user's job has them; one at a time.
    `as_root`: what only root can prepare (harness/root.py). `cluster`: it makes nodes (harness/cluster.py), and runs as root, in a
    network name space of its own."""

    def register(function):
        rows = [{}] if each is None else each
        for parameters in pairwise.every_value(rows) if spread and not soak else rows:
            suffix = "".join(f"/{value}" for value in parameters.values())
            _all.append(Scenario(f"{name}{suffix}", function, timeout, weight, parameters, memory_mb, public, as_root, cluster))
        return function

    return register


def matrix(path, soak):
    """Rows of matrix.toml: the full product, or a pairwise selection of it."""
    dimensions = tomllib.loads(path.read_text())
    impossible = dimensions.pop("impossible", [])
    dimensions.pop("over-nodes")

    def allowed(row):
        return not any(all(row[key] in values for key, values in rule.items()) for rule in impossible)

    return list(pairwise.full(dimensions, allowed)) if soak else pairwise.pairwise(dimensions, allowed)


def over_nodes(path, soak):
    """Pairs of a failure and an MPI, of jobs over several nodes: all of them, or those of `make test`."""
    table = tomllib.loads(path.read_text())["over-nodes"]
    impossible = [(pair["failure"], mpi) for pair in table.get("impossible", []) for mpi in pair["mpi"]]
    pairs = [(failure, mpi) for failure, tested in table["failure"].items() for mpi in (table["mpi"] if soak else tested)]
    return [{"failure": failure, "mpi": mpi} for failure, mpi in pairs if (failure, mpi) not in impossible]


def pairs_of_applications(path, soak):
    """Pairs of an application and a failure: all of them, or those of `make test`."""
    table = tomllib.loads(path.read_text())["over-nodes"]["application"]
    pairs = [(application, failure) for application, runs in table.items() for failure in runs["soak" if soak else "test"]]
    return [{"application": application, "failure": failure} for application, failure in pairs]


def through(path, soak):
    """Pairs of an application and one of heat2d's failures: all that can be, or those of `make test`."""
    table = tomllib.loads(path.read_text())["over-nodes"]
    rules = table["through"]
    failures = [failure for failure in table["failure"] if failure not in rules["impossible"]]
    pairs = [(application, failure) for application in table["application"] for failure in (failures if soak else rules["test"][application])]
    return [{"application": application, "failure": failure} for application, failure in pairs]


def load(here, soak):
    """All scenarios."""
    this = sys.modules["harness.registry"]
    this.soak, this.rows = soak, matrix(here / "matrix.toml", soak)
    this.pairs = over_nodes(here / "matrix.toml", soak)
    this.through = through(here / "matrix.toml", soak)
    this.applications = pairs_of_applications(here / "matrix.toml", soak)
    for path in sorted((here / "scenarios").glob("[a-z]*.py")):
        importlib.import_module(f"scenarios.{path.stem}")
    return _all
