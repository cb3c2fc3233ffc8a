"""Bad settings: one error each, before anything is touched."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from served_host import Host

from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.settings import base_spec, check_auto_budget, read_settings
from ddtree_deploy.serve.spec import API_KEY, is_loopback


@pytest.mark.parametrize(
    ("changes", "id"),
    [
        ({"budget": -1}, "budget-out-of-range"),
        ({"budget": 0}, "budget-out-of-range"),
        ({"budget": 100000}, "budget-out-of-range"),
        ({"budget": "7.5"}, "budget-invalid"),
        ({"budget": True}, "budget-invalid"),
        ({"budget": None}, "budget-missing"),
        ({"budget": "auto"}, "budget-auto"),  # a CPU service
        ({"algorithm": "eagle"}, "bad-algorithm"),
        ({"model": ""}, "model-missing"),
        ({"model": "/nowhere/model"}, "model-missing"),
        ({"model": "relative"}, "bad-model"),
        ({"model": "./a/b"}, "bad-model"),
        ({"model": "~no-such-user/model"}, "no-such-home"),
        ({"release": "~no-such-user/release"}, "no-such-home"),
        ({"model": "/usr/lib"}, "model-incomplete"),
        ({"model": "/models/\udcff"}, "bad-text"),
        ({"environment": {"A": "\ud800"}}, "bad-text"),
        ({"secrets": {"A": "\udcfc"}}, "bad-text"),
        ({"engine_arguments": ["--x", "\udcfc"]}, "bad-text"),
        ({"draft": None}, "draft-missing"),
        ({"draft": "/nowhere/draft"}, "draft-missing"),
        ({"release": "no-such-release"}, "release-missing"),
        ({"gpus": [0]}, "gpus-on-cpu"),
        ({"gpus": []}, "no-gpus"),
        ({"listen": "0.0.0.0"}, "api-key-needed"),
        ({"listen": "gpu1.example.com"}, "api-key-needed"),
        ({"listen": "::"}, "api-key-needed"),
        ({"api_key": ""}, "bad-api-key"),
        ({"api_key": "two\nlines"}, "bad-api-key"),
        ({"api_key": "-x"}, "bad-api-key"),
        ({"ports": [35001, 35000]}, "bad-ports"),
        ({"ports": [35000, 35000]}, "ports-exhausted"),
        ({"launch_timeout": 0}, "bad-timeout"),
        ({"environment": {"A B": "x"}}, "bad-environment"),
        ({"environment": {"A": "x\0"}}, "bad-environment"),
        ({"environment": {"A": "x"}, "secrets": {"A": "y"}}, "bad-environment"),
        ({"environment": {"CUDA_VISIBLE_DEVICES": "1"}}, "owned-variable"),
        ({"secrets": {"DDTREE_SERVICE": "1"}}, "owned-variable"),
        ({"engine_arguments": ["--api-key", "x"]}, "secret-in-arguments"),
        ({"unknown": 1}, "bad-document"),
        ({"gpus": "0"}, "bad-document"),
    ],
)
def test_bad_settings(host: Host, changes: dict[str, Any], id: str) -> None:
    with pytest.raises(InputError) as caught:
        host.launch(**changes)
    assert caught.value.id == id
    assert caught.value.exit_code == 3
    assert not [path for path in (host.root / "services").glob("*") if path.is_dir()]


def test_a_root_without_a_release(tmp_path: Path) -> None:
    from ddtree_deploy.agent.protocol import silent
    from ddtree_deploy.serve.operations import op_launch

    with pytest.raises(InputError) as caught:
        op_launch({"root": str(tmp_path), "model": "/m"}, silent)
    assert caught.value.id == "no-current-release"


def test_a_release_without_python(host: Host) -> None:
    (host.release / "bin" / "python").unlink()
    with pytest.raises(InputError) as caught:
        host.launch()
    assert caught.value.id == "release-python-missing"


def test_what_a_spec_holds(host: Host) -> None:
    settings = read_settings(host.params(budget="31", api_key="k" * 20, secrets={"HF_TOKEN": "t"}, listen="0.0.0.0"))
    spec = base_spec(settings, host.release)
    assert settings.secrets == {API_KEY: "k" * 20, "HF_TOKEN": "t"}
    assert spec.budget == 31
    assert spec.secret_names == [API_KEY, "HF_TOKEN"]
    assert "kkkk" not in repr(spec)


def test_a_measured_budget_is_for_gpus_with_cuda_graphs(host: Host) -> None:
    spec = base_spec(read_settings(host.params(budget="auto")), host.release)
    assert spec.budget == "auto"
    check_auto_budget(spec, False, ["--mem-fraction-static", "0.8"])
    for on_cpu, arguments, why in ((True, [], "CPU"), (False, ["--disable-cuda-graph"], "--disable-cuda-graph")):
        with pytest.raises(InputError) as caught:
            check_auto_budget(spec, on_cpu, arguments)
        assert (caught.value.id, int(caught.value.exit_code)) == ("budget-auto", 3)
        assert "CUDA graphs" in caught.value.message and why in caught.value.message
        assert "31" in str(caught.value.hint)
        check_auto_budget(dataclasses.replace(spec, budget=31), on_cpu, arguments)


def test_plain_decoding_needs_neither_draft_nor_budget(host: Host) -> None:
    spec = base_spec(read_settings(host.params(algorithm="none", draft="/nowhere", budget=31)), host.release)
    assert (spec.draft, spec.budget) == (None, None)


@pytest.mark.parametrize(
    ("model", "draft", "expected"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, {"architectures": ["DFlashDraftModel"]}, None),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"architectures": ["Qwen3ForCausalLM"]}, "draft-not-dflash"),
        ({"architectures": ["DFlashDraftModel"]}, {"architectures": ["Qwen3ForCausalLM"]}, "draft-not-dflash"),
        ({"architectures": ["DFlashDraftModel"]}, {"architectures": ["DFlashDraftModel"]}, "model-is-draft"),
        ({}, {"architectures": []}, None),  # the engine's business, as is a file that is no JSON
        ([], {"architectures": "x"}, None),
        (None, None, None),
    ],
)
def test_a_draft_that_is_none_and_a_model_that_is_one(host: Host, model: Any, draft: Any, expected: str | None) -> None:
    for name, config in (("target", model), ("drafter", draft)):
        (host.root / name).mkdir()
        (host.root / name / "config.json").write_text("{" if config is None else json.dumps(config))
    paths = {"model": str(host.root / "target"), "draft": str(host.root / "drafter")}
    base_spec(read_settings(host.params(algorithm="none", **paths)), host.release)
    for algorithm in ("ddtree", "dflash"):
        settings = read_settings(host.params(algorithm=algorithm, **paths))
        if expected is None:
            base_spec(settings, host.release)
            continue
        with pytest.raises(InputError) as caught:
            base_spec(settings, host.release)
        assert (caught.value.id, int(caught.value.exit_code)) == (expected, 3)


def test_a_missing_budget_says_where_to_say_it(host: Host) -> None:
    with pytest.raises(InputError) as caught:
        base_spec(read_settings(host.params(budget=None)), host.release)
    assert "--budget" in str(caught.value.hint) and "inventory" in str(caught.value.hint)


def test_hub_names_are_left_to_the_engine(host: Host) -> None:
    spec = base_spec(read_settings(host.params(model="Qwen/Qwen3-8B", draft="z-lab/Qwen3-8B-DFlash-b16")), host.release)
    assert (spec.model, spec.draft) == ("Qwen/Qwen3-8B", "z-lab/Qwen3-8B-DFlash-b16")


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback(listen: str, expected: bool) -> None:
    assert is_loopback(listen) is expected
