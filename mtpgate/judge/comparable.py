"""What two launches under different keys still have in common.

Which draft tokens are accepted is a question of the model, the text and the cell's speculation; a machine that is
faster or slower accepts the same ones, up to rounding. So **accept lengths** are comparable across hardware, drivers,
backends and SGLang versions. **Tokens/s** are comparable only on the same hardware, and then the difference is that of
the software below the cell that changed: it is shown as such, and is no verdict. Another model, workload, cell, matrix
or engine leaves nothing to compare.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

Figure = Literal["tokens/s", "accept length"]

SOFTWARE = frozenset({"sglang", "driver", "attention_backend"})
"""Parts of the key that may change below the same cell on the same hardware."""

MACHINE = frozenset({"hardware", "gpus"})


def comparable(changed_parts: Collection[str]) -> tuple[Figure, ...]:
    """The figures that mean the same under two keys that differ in these parts."""
    changed = frozenset(changed_parts)
    if changed <= SOFTWARE:
        return "tokens/s", "accept length"
    return ("accept length",) if changed <= SOFTWARE | MACHINE else ()
