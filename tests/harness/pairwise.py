"""A small, deterministic pairwise selection: every pair of values of two dimensions that is allowed occurs in some row."""

import itertools


def full(dimensions, allowed):
    """Every allowed combination. `dimensions` is a dict name -> list of values, `allowed` a predicate on whole rows."""
    names = list(dimensions)
    for values in itertools.product(*dimensions.values()):
        row = dict(zip(names, values))
        if allowed(row):
            yield row


def pairs_of(row):
    """The pairs that a row covers."""
    return set(itertools.combinations(sorted(row.items()), 2))


def every_value(rows):
    """Of the variants of one scenario, as few as hold each value of each parameter; chosen as `pairwise` chooses."""
    return _cover([(row, set(row.items())) for row in rows])


def pairwise(dimensions, allowed):
    """Greedy: always the row that covers most pairs not covered yet; among those the one whose values were used least, then
    the first in product order. So the selection is the same everywhere, and evenly spread."""
    return _cover([(row, pairs_of(row)) for row in full(dimensions, allowed)])


def _cover(rows):
    """Of these (row, what it covers), rows that cover all together what all cover."""
    missing = set().union(*(covered for _, covered in rows))
    used = {}
    chosen = []
    while missing:
        row, covered = max(
            rows, key=lambda entry: (len(entry[1] & missing), -sum(used.get(value, 0) for value in entry[0].items()))
        )
        chosen.append(row)
        missing -= covered
        for value in row.items():
            used[value] = used.get(value, 0) + 1
    return chosen
