"""Specs in, argument vectors out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.command import check_engine_arguments, engine_command, merge_arguments, option_value
from ddtree_deploy.serve.spec import API_KEY, ServiceSpec

CONFIG = Path("/r/services/gpu0/engine.yaml")
FIXED = ["/rel/bin/python", "-m", "sglang.launch_server"]
PLACE = ["--model-path", "/m", "--host", "127.0.0.1", "--port", "30000", "--nccl-port", "30001"]

DRAFT = ["--speculative-draft-model-path", "/d"]


def spec(**changes: Any) -> ServiceSpec:
    given = {"name": "gpu0", "release": "/rel", "release_id": "r", "model": "/m", "algorithm": "none"}
    return ServiceSpec(**{**given, "port": 30000, "nccl_port": 30001, **changes})


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, PLACE),
        (
            {"algorithm": "ddtree", "draft": "/d", "budget": 31},
            [*PLACE, "--speculative-algorithm", "DDTREE", *DRAFT, "--speculative-ddtree-budget", "31"],
        ),
        (
            {"algorithm": "ddtree", "draft": "/d", "budget": "auto"},
            [*PLACE, "--speculative-algorithm", "DDTREE", *DRAFT, "--speculative-ddtree-budget", "auto"],
        ),
        (
            {"algorithm": "dflash", "draft": "/d"},
            [*PLACE, "--speculative-algorithm", "DFLASH", *DRAFT],
        ),
        (
            {"profile_arguments": ["--device", "cpu"], "engine_arguments": ["--mem-fraction-static", "0.8"]},
            [*PLACE, "--device", "cpu", "--mem-fraction-static", "0.8"],
        ),
        ({"secret_names": ["HF_TOKEN"]}, PLACE),
        ({"secret_names": [API_KEY]}, ["--config", str(CONFIG), *PLACE]),
    ],
)
def test_command(changes: dict[str, Any], expected: list[str]) -> None:
    assert engine_command(spec(**changes), CONFIG) == FIXED + expected


@pytest.mark.parametrize(
    ("profile", "user", "expected"),
    [
        (["--a", "1", "--b"], [], ["--a", "1", "--b"]),
        (["--a", "1", "--b"], ["--a", "2"], ["--b", "--a", "2"]),
        (["--a=1", "--b"], ["--a", "2"], ["--b", "--a", "2"]),
        (["--a", "1", "2", "--b", "-1"], ["--b=3"], ["--a", "1", "2", "--b=3"]),
        ([], ["--x", "1", "--x", "2"], ["--x", "1", "--x", "2"]),
    ],
)
def test_users_arguments_win(profile: list[str], user: list[str], expected: list[str]) -> None:
    assert merge_arguments(profile, user) == expected


def test_option_value() -> None:
    arguments = ["--device", "cuda", "--flag", "--device=cpu"]
    assert option_value(arguments, "--device") == "cpu"
    assert option_value(arguments, "--flag") is None
    assert option_value(arguments, "--none") is None


@pytest.mark.parametrize(
    ("arguments", "api_key", "id"),
    [
        (["--api-key", "x"], False, "secret-in-arguments"),
        (["--admin-api-key=x"], False, "secret-in-arguments"),
        (["--api_key", "x"], False, "secret-in-arguments"),
        (["--api-k=x"], False, "secret-in-arguments"),
        (["--model_pa", "/m"], False, "owned-engine-argument"),
        (["--port", "1"], False, "owned-engine-argument"),
        (["--speculative-ddtree-budget", "4"], False, "owned-engine-argument"),
        (["device", "cpu"], False, "bad-engine-argument"),
        (["--config", "f.yaml"], True, "config-and-api-key"),
    ],
)
def test_refused_arguments(arguments: list[str], api_key: bool, id: str) -> None:
    with pytest.raises(InputError) as caught:
        check_engine_arguments(arguments, api_key)
    assert caught.value.id == id
    assert caught.value.hint
    assert "x" not in caught.value.message.split()  # no secret in the message


def test_config_without_api_key_is_the_users_own() -> None:
    check_engine_arguments(["--config", "f.yaml", "--device", "cpu", "-1"], False)
