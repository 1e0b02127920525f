"""The door to a matrix file: read it, check it, and prove that it comes to cells."""

from __future__ import annotations

from pathlib import Path

from mtpgate.matrix.expand import try_expand
from mtpgate.matrix.schema import Matrix
from mtpgate.matrix.values import name_faults
from mtpgate.matrix.yamlfile import Problem, read_yaml, validate


def load_matrix(path: Path) -> Matrix:
    """The matrix in ``path``.

    Raises UsageError with every fault of the file, one a line: ``file:line: axes.speculation[1].num_step: unknown
    key; did you mean num_steps?``. Faults that only show when the cells are made (an impossible reference, ids that
    collide, an exclude that matches nothing) are among them.
    """
    document = read_yaml(path)
    named = [Problem(key, text) for key, text in name_faults(document.data)]
    matrix = validate(document, Matrix, also=named)
    _, faults = try_expand(matrix)
    if faults:
        raise document.error([Problem(key, text) for key, text in faults])
    return matrix
