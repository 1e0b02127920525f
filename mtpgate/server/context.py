"""What is known of a launch besides its log, read from a mapping that may hold anything."""

from __future__ import annotations

from collections.abc import Mapping

from mtpgate.server.memory_facts import Load

MOST_NUMBER = 1e9
"""Beyond any size in GiB and any count that a launch has: flipped bits, or a context that is none."""


class Context:
    """Typed access to a context; what cannot be what it should be is None."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    @property
    def speculative(self) -> bool | None:
        """Whether the launch speculates; None: the log has to tell."""
        return bool(self._values["speculative"]) if "speculative" in self._values else None

    @property
    def speculation(self) -> Mapping[str, object]:
        found = self._values.get("speculative")
        return found if isinstance(found, Mapping) else {}

    @property
    def timed_out(self) -> bool:
        return self._values.get("timed_out") is True

    @property
    def compiling(self) -> bool | None:
        """Whether compilers were seen at work when the launch was ended."""
        found = self._values.get("compiling")
        return found if isinstance(found, bool) else None

    @property
    def exit_code(self) -> object:
        return self._values.get("exit_code")

    @property
    def tp(self) -> int | None:
        return whole(self._values.get("tp"))

    @property
    def fraction(self) -> float | None:
        return fraction(self._values.get("mem_fraction_static"))

    @property
    def gpu_total_gib(self) -> float | None:
        return number(self._values.get("gpu_total_gib"))

    @property
    def loads(self) -> tuple[Load, ...]:
        """The workloads, as far as they can be read."""
        value = self._values.get("workloads")
        found = []
        for item in value if isinstance(value, list | tuple) else ():
            if isinstance(item, Mapping):
                sizes = [whole(item.get(key)) for key in ("concurrency", "input_tokens", "output_tokens")]
                if all(sizes):
                    concurrency, asked, answered = (size or 0 for size in sizes)
                    found.append(Load(concurrency, asked + answered))
        return tuple(found)


def number(value: object) -> float | None:
    """A size or a count that can be one; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_NUMBER:
        return None
    return float(value)


def fraction(value: object) -> float | None:
    """A memory fraction: above 0, at most 1."""
    found = number(value)
    return found if found is not None and 0 < found <= 1 else None


def whole(value: object) -> int | None:
    """A count of at least 1."""
    found = number(value)
    return int(found) if found is not None and found == found // 1 and found > 0 else None
