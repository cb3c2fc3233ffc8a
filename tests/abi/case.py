"""What a case is, and how the modules of cases list theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from abi.fixtures import Venv

Build = Callable[[Venv], None]


@dataclass(frozen=True)
class Case:
    """``broken`` must be found as ``id`` with ``severity`` and nothing else; ``clean`` as no error or warning."""

    name: str
    id: str
    severity: str
    when: str
    broken: Build
    clean: Build


class Cases(list[Case]):
    """A list that its decorator fills."""

    def case(self, id: str, *, when: str = "import", severity: str = "error", clean: Build) -> Callable[[Build], Build]:
        """Lists a case named as its function; ``clean`` builds the twin."""

        def register(broken: Build) -> Build:
            self.append(Case(broken.__name__.replace("_", "-"), id, severity, when, broken, clean))
            return broken

        return register


def void(_: object) -> None:
    """For clean twins of one expression."""
