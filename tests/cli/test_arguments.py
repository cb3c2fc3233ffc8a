from __future__ import annotations

import pytest

from ddtree_deploy.cli.arguments import globals_first


@pytest.mark.parametrize(
    ("written", "ordered"),
    [
        (["plan", "a", "--json"], ["--json", "plan", "a"]),
        (["--json", "plan", "a"], ["--json", "plan", "a"]),
        (["plan", "--inventory", "x.yaml", "a"], ["--inventory", "x.yaml", "plan", "a"]),
        (["plan", "-i", "x.yaml", "a"], ["-i", "x.yaml", "plan", "a"]),
        (["plan", "--inventory=x.yaml", "a", "-vv"], ["--inventory=x.yaml", "-vv", "plan", "a"]),
        (["facts", "a", "--save", "f", "--no-color"], ["--no-color", "facts", "a", "--save", "f"]),
        (["provision", "a", "--accept-new-host-keys"], ["--accept-new-host-keys", "provision", "a"]),
        (["logs", "a", "-f"], ["logs", "a", "-f"]),
        (["patches", "check", "--", "--json"], ["patches", "check", "--", "--json"]),
        (["plan", "a", "--inventory"], ["--inventory"]),  # its value is missing: for the parser to say
        (["plan", "a", "-i", "--json"], ["-i", "--json", "plan", "a"]),
        ([], []),
    ],
)
def test_global_options_may_follow_the_command(written: list[str], ordered: list[str]) -> None:
    assert globals_first(written).words == ordered


def test_flags_are_known_before_parsing() -> None:
    arguments = globals_first(["bogus", "--json", "-v", "--no-color"])
    assert (arguments.json, arguments.verbose, arguments.color) == (True, True, False)
    arguments = globals_first(["bogus", "--", "--json"])
    assert (arguments.json, arguments.verbose, arguments.color) == (False, False, True)
