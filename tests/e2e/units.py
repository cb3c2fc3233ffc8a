"""How two workers share the end-to-end tests (``--dist loadscope``): what uses one thing goes to one worker, in its
order, and what takes long comes first, so that both are busy to the end."""

from __future__ import annotations

from typing import Any

import pytest

# A unit's name, or None where every test is one, and how the ids of its tests begin; of all others, the file is one.
# The first worker makes the release; the other begins with what needs none.
UNITS = (
    ("chain", "e2e/test_local_chain.py"),
    ("chain", "e2e/test_ssh_chain.py::TestChain"),
    ("input", "e2e/test_bad_input.py"),
    ("hosts", "e2e/test_bad_hosts.py"),
    ("checks", "verify/test_gpu_checks_e2e.py"),
    (None, "demo/test_demo.py"),  # when there is a release, so that two do not fetch the same packages at once
    ("requests", "engine/e2e/test_requests.py"),
    ("serve", "serve/test_serve_e2e.py"),
    (None, "engine/e2e/test_acceptance.py"),
    (None, "engine/e2e/test_rehearsal.py"),
    ("arguments", "engine/e2e/test_refusals.py"),
    (None, "engine/test_engine_unit.py"),
    ("refused", "e2e/test_ssh_chain.py::TestRefused"),
)


def place(nodeid: str) -> tuple[int, str]:
    """Where it comes among the units, and the name of its own."""
    test = nodeid.removeprefix("tests/")
    for number, (name, beginning) in enumerate(UNITS):
        if test.startswith(beginning):
            return number, name or nodeid
    return len(UNITS), test.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling  # here: the python of a release reads this too, and has no xdist

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return place(nodeid)[1]

    if config.getoption("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False
    return Units(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: place(item.nodeid)[0])
