from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from planning import inputs_of

from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import Engine
from ddtree_deploy.inventory.load import load_inventory
from ddtree_deploy.plan.gather import (
    Choices,
    check_facts,
    host_for_facts,
    load_facts,
    patch_files,
    prepare,
    save_facts,
)

FACTS = inputs_of().facts


def test_facts_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "new" / "facts.json"
    save_facts(FACTS, file)
    assert load_facts(file) == FACTS


def test_facts_with_names_that_are_no_utf8_are_read_as_they_were_written(tmp_path: Path) -> None:
    engine = Engine("sglang", "1.0", "/x", added_files=[os.fsdecode(b"sglang/a\xff.py"), "sglang/\u00e9\\udcff.py"])
    facts = replace(FACTS, engine=engine)
    save_facts(facts, tmp_path / "facts.json")
    assert load_facts(tmp_path / "facts.json") == facts


def test_the_json_output_of_one_host_will_do(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({"hosts": [{"host": "gpu1", "facts": to_dict(FACTS)}]}), "utf-8")
    assert load_facts(file) == FACTS


def test_facts_that_were_edited_name_the_field(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    save_facts(FACTS, file)
    facts = json.loads(file.read_text())
    file.write_text(json.dumps({**facts, "gpus": [{"index": 0, "uuid": "GPU-1", "name": "NVIDIA H200", "vram": 1}]}))
    with pytest.raises(InputError, match="unknown field 'vram'") as caught:
        load_facts(file)
    assert caught.value.where == f"{file}: gpus[0]"


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("", "facts-not-json"),
        ("{", "facts-not-json"),
        ("\x00", "facts-not-json"),
        ("[]", "bad-document"),
        ("{}", "bad-document"),
        ('{"schema": 99}', "facts-schema"),
        ('{"hosts": []}', "bad-document"),
        ('{"hosts": [1]}', "bad-document"),
        ('{"hosts": [{"host": "a", "error": {}}]}', "bad-document"),
    ],
)
def test_bad_facts_name_the_file(tmp_path: Path, text: str, id: str) -> None:
    file = tmp_path / "facts.json"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        load_facts(file)
    assert caught.value.id == id
    assert str(file) in str(caught.value.where)
    assert "facts HOST --save" in str(caught.value.hint)


def test_facts_that_are_not_utf8_or_not_there(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError):
        load_facts(file)
    with pytest.raises(InputError) as caught:
        load_facts(tmp_path)
    assert caught.value.id == "facts-unreadable"


def test_a_wrong_type_names_the_field(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    file.write_text(json.dumps({**to_dict(FACTS), "gpus": [{"index": "zero", "uuid": "u", "name": "n"}]}), "utf-8")
    with pytest.raises(InputError) as caught:
        load_facts(file)
    assert "gpus[0].index" in str(caught.value.where)


def test_facts_of_another_base_are_refused() -> None:
    settings = inputs_of().settings
    check_facts(FACTS, settings, "f")
    check_facts(FACTS, replace(settings, base="~/venv"), "f")  # only the host knows what ~ is
    with pytest.raises(InputError) as caught:
        check_facts(FACTS, replace(settings, base="/opt/other"), "f.json")
    assert caught.value.id == "facts-of-another-base"
    with pytest.raises(InputError) as caught:
        check_facts(FACTS, replace(settings, root="/srv"), "f.json")
    assert caught.value.id == "facts-of-another-root"


def test_without_a_host_the_facts_say_which(tmp_path: Path) -> None:
    inventory = load_inventory()
    alone = host_for_facts(FACTS, inventory)
    assert (alone.name, alone.root, alone.base, alone.profile) == ("gpu1", "/opt/ddtree", "/opt/train", None)
    file = tmp_path / "hosts.yaml"
    file.write_text("hosts: {gpu1: {base: /opt/train, profile: sglang-0.5.11-cu130}}", "utf-8")
    assert host_for_facts(FACTS, load_inventory(file)).profile == "sglang-0.5.11-cu130"


def test_a_host_without_profile_is_told_what_to_do() -> None:
    with pytest.raises(InputError) as caught:
        prepare(host_for_facts(FACTS, load_inventory()), Choices())
    assert caught.value.id == "not-set" and "--profile" in str(caught.value.hint)


def test_patch_files_are_those_of_the_patch_set() -> None:
    assert patch_files(inputs_of().patch_set) == ["sglang/server.py", "sglang/tree.py"]
    assert patch_files(None) == []


def test_without_gpu_is_said_by_an_empty_list() -> None:
    host = host_for_facts(FACTS, load_inventory())
    prepared = prepare(host, Choices(profile="sglang-0.5.11-cu130", without_gpu=True))
    assert prepared.settings.gpus == []
    assert prepared.index_urls() == []
    assert prepare(host, Choices("sglang-0.5.11-cpu", source="index:https://i.example/simple")).index_urls() == [
        "https://i.example/simple"
    ]
