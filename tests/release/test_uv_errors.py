"""What uv prints, recorded from its versions 0.4 to 0.13, and what we make of it."""

from __future__ import annotations

import pytest

from ddtree_deploy.release.uv_errors import masked, uv_error

CASES = [
    (
        "error: Failed to fetch: `https://index.test/simple/torch/`\n  Caused by: Request failed after 3 retries\n"
        "  Caused by: error sending request for url (https://index.test/simple/torch/)\n"
        "  Caused by: client error (Connect)\n  Caused by: dns error: failed to lookup address information",
        "index-unreachable",
    ),
    (
        "  \u00d7 Failed to fetch: `https://index.test/simple/torch/`\n  ├─▶ Request failed after 3 retries\n"
        "  ╰─▶ tcp connect error: Connection refused (os error 111)",
        "index-unreachable",
    ),
    (
        "error: Failed to fetch: `https://index.test/x/`\n"
        "  Caused by: HTTP status server error (503 Service Unavailable)",
        "index-unreachable",
    ),
    (
        "error: Failed to fetch: `https://index.test/x/`\n"
        "  Caused by: HTTP status client error (401 Unauthorized) for url",
        "index-refused",
    ),
    (
        "Resolved 1 package in 1ms\n  \u00d7 Failed to download `extra==1.0`\n  ╰─▶ Hash mismatch for `extra==1.0`\n\n"
        "      Expected:\n        sha256:11\n\n      Computed:\n        sha256:46",
        "hash-mismatch",
    ),
    (
        "  \u00d7 No solution found when resolving dependencies:\n"
        "  ╰─▶ Because other==1.0 has no wheels with a matching Python ABI tag (e.g., `cp311`) and you require "
        "other==1.0,\n      we can conclude that your requirements are unsatisfiable.",
        "no-matching-wheel",
    ),
    (
        "error: Distribution `torch==2.11.0 @ registry+https://x/` can't be installed because it doesn't have a source "
        "distribution or wheel for the current platform",
        "no-matching-wheel",
    ),
    (
        "  \u00d7 No solution found when resolving dependencies:\n  ╰─▶ Because there is no version of torch==9.9 and "
        "you require torch==9.9, we can conclude that your requirements are unsatisfiable.",
        "package-not-found",
    ),
    (
        "error: Failed to install: torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl (torch==2.11.0)\n"
        "  Caused by: failed to copy file\n  Caused by: No space left on device (os error 28)",
        "no-space",
    ),
    (
        "error: Failed to download `b==1`\n  cause: Failed to extract archive: b-1-py3-none-any.whl\n"
        "  cause: Invalid zip file structure",
        "corrupt-wheel",
    ),
    ("error: No interpreter found at path `/x/bin/python`", "python-missing"),
    ("error: something never seen before", "uv-failed"),
    ("", "uv-failed"),
]


@pytest.mark.parametrize(("output", "id"), CASES)
def test_errors(output: str, id: str) -> None:
    preamble = "Using Python 3.11.2 environment at: /srv/corrupt/Connection refused/x\n"
    error = uv_error(preamble + output if output else "", 2, "/root/uv.log", "index")
    assert error.id == id, error.message
    assert error.where == "/root/uv.log"
    assert error.hint
    assert "environment at" not in error.message
    assert error.details["status"] == 2


def test_the_message_has_what_and_why() -> None:
    error = uv_error(CASES[-4][0], 1, "log", "wheelhouse")
    assert error.message == (
        "a wheel is damaged (wheelhouse): Failed to download `b==1`: Failed to extract archive: b-1-py3-none-any.whl: "
        "Invalid zip file structure"
    )


def test_passwords_are_masked() -> None:
    text = "\x1b[31merror\x1b[0m: https://user:pa@ss@index.test/simple and http://token@index.test/"
    assert masked(text) == "error: https://***@index.test/simple and http://***@index.test/"
