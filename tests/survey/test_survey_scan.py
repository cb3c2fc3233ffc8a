import json
import os
from pathlib import Path

import pytest
from rich.console import Console
from survey_tree import lay_out

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.patching.model import FilePatch, NewFile, PatchSet
from ddtree_deploy.survey.model import Survey
from ddtree_deploy.survey.report import render, to_markdown, write_markdown
from ddtree_deploy.survey.scan import op_survey, survey


@pytest.fixture
def found(site):
    return survey(site)


def backends(found):
    return {(b.name, b.class_name): b for b in found.backends}


@pytest.mark.parametrize(
    ("key", "verdict", "eager", "graph", "says"),
    [
        (("plain", "PlainBackend"), "yes", True, True, "reads"),
        (("plain_alias", "PlainBackend"), "yes", True, True, "reads"),
        (("gated", "GatedBackend"), "only if topk > 1", True, False, "top-k"),
        (("dropping", "DroppingBackend"), "no", None, None, "not used"),
        (("dropping", "InheritingBackend"), "no", None, None, "inherited from DroppingBackend"),
        (("chosen", "ChainBackend"), "no", None, None, "no tree mask is read"),
        (("blind", "BlindBackend"), "no", None, None, "no path"),
        (("lost", "LostBackend"), "unknown", None, None, "not found"),
        (("updater", "UpdaterBackend"), "yes", True, False, "reads"),
        (("WrapperBackend", "WrapperBackend"), "as wrapped", None, None, "wraps"),
    ],
)
def test_backends(found, key, verdict, eager, graph, says):
    backend = backends(found)[key]
    assert (backend.verdict, backend.eager, backend.graph) == (verdict, eager, graph)
    assert says in backend.reason


def test_evidence_names_the_line(found):
    gated = backends(found)["gated", "GatedBackend"]
    texts = [evidence.text for evidence in gated.evidence]
    assert any("custom_mask[3]" in text for text in texts)
    assert any("speculative_eagle_topk" in text for text in texts)
    chain = backends(found)["chosen", "ChainBackend"]
    assert any("only support topk = 1" in evidence.text for evidence in chain.evidence)
    for evidence in gated.evidence + chain.evidence:
        assert evidence.path.startswith("sglang/srt/layers/attention/") and evidence.line > 0


def test_algorithms(found):
    algorithms = {a.name: a for a in found.algorithms}
    assert list(algorithms) == ["DFLASH", "DDTREE", "EAGLE", "NONE", "MY_SPEC"]
    assert algorithms["DDTREE"].predicates == ["is_some", "is_dflash", "is_ddtree"]
    assert algorithms["DFLASH"].predicates == ["is_some", "is_dflash"]
    assert algorithms["NONE"].predicates == ["is_none"]
    assert algorithms["MY_SPEC"].registered


def test_components_arguments_and_notes(found):
    kinds = {(c.kind, c.name) for c in found.components}
    assert {("worker v1", "DFlashWorker"), ("worker v2", "NGRAMWorker"), ("module", "dflash_utils")} <= kinds
    assert ("function", "build_tree_kernel") in kinds
    assert [(a.name, a.default) for a in found.server_arguments] == [
        ("speculative_algorithm", "None"),
        ("speculative_size", "10 * 1000"),
    ]
    assert any("AlphaBackend, BetaBackend" in note for note in found.notes)


def test_local_changes_and_commit(site):
    assert survey(site).changes == codec.from_dict(type(survey(site).changes), {"compared": True})
    assert survey(site).commit == "abcdef1"
    (site / "sglang/srt/server_args.py").write_text("edited = 1\n")
    (site / "sglang/srt/speculative/plugin.py").unlink()
    (site / "sglang/added.py").write_text("")
    changes = survey(site).changes
    assert changes.changed == ["sglang/srt/server_args.py"]
    assert changes.missing == ["sglang/srt/speculative/plugin.py"]
    assert changes.added == ["sglang/added.py"]


def test_what_a_patch_set_would_touch(site):
    patch = FilePatch("sglang/_version.py", "", "0" * 64, "1" * 64)
    patch_set = PatchSet("set", "sglang", "0.5.11", [], [NewFile("sglang/new.py", "", "2" * 64)], "d")
    preview = survey(site, patch_set=patch_set).patch
    assert preview.fits and preview.note == "1 of 1 files would change"
    wrong = PatchSet("set", "sglang", "0.5.12", [patch], [], "d")
    preview = survey(site, patch_set=wrong).patch
    assert not preview.fits and "0.5.12" in preview.note


def test_source_that_cannot_be_parsed_is_told(site):
    (site / "sglang/srt/layers/attention/plain_backend.py").write_text("def broken(:\n")
    found = survey(site)
    assert backends(found)["plain", "PlainBackend"].verdict == "unknown"
    assert any("plain_backend.py cannot be parsed" in note for note in found.notes)


@pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# coding: latin-1\n# caf\xe9\n"])
def test_source_is_decoded_as_python_does(site, head):
    spec_info = site / "sglang/srt/speculative/spec_info.py"
    spec_info.write_bytes(head + spec_info.read_bytes())
    found = survey(site)
    assert "DFLASH" in [algorithm.name for algorithm in found.algorithms]
    assert not [note for note in found.notes if "cannot be parsed" in note]


def test_factories_that_call_each_other(site):
    registry = site / "sglang/srt/layers/attention/attention_registry.py"
    more = "".join(
        f"@register_attention_backend('{one}')\ndef {one}(runner):\n    return {other}(runner)\n\n\n"
        for one, other in (("ping", "pong"), ("pong", "ping"))
    )
    registry.write_text(registry.read_text() + more)
    assert backends(survey(site))["ping", ""].verdict == "unknown"


def test_a_default_that_is_too_deep_to_be_written_out(site):
    arguments = site / "sglang/srt/server_args.py"
    arguments.write_text(f"{arguments.read_text()}    speculative_sum: int = {' + '.join(['1'] * 900)}\n")
    assert {a.name: a.default for a in survey(site).server_arguments}["speculative_sum"].endswith("...")


def test_files_that_nobody_may_read_are_told(site, monkeypatch):
    path = "sglang/srt/speculative/spec_info.py"

    def read(self):
        if self == site / path:
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", read)
    diff = f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-a\n+b\n"
    patch_set = PatchSet("set", "sglang", "0.5.11", [FilePatch(path, diff, "1" * 64, "2" * 64)], [], "d")
    found = survey(site, patch_set=patch_set)
    assert found.changes.changed == [path]
    assert any(f"{path} cannot be parsed" in note for note in found.notes)
    assert "cannot be read" in found.patch.note and not found.patch.fits


@pytest.mark.parametrize("content", [b"\xff\xfe\0", b"ref: refs/heads/main\n"])
def test_an_editable_install_in_an_odd_folder(site, tmp_path, content):
    project = tmp_path / "my checkout 100%"
    (project / ".git").mkdir(parents=True)
    (project / ".git/HEAD").write_bytes(content)
    (project / ".git/packed-refs").write_bytes(b"\xff refs/heads/main\n")
    (site / "sglang").rename(project / "sglang")
    origin = {"url": project.as_uri(), "dir_info": {"editable": True}}
    (site / "sglang-0.5.11.dist-info/direct_url.json").write_text(json.dumps(origin))
    found = survey(site)
    assert (found.commit, found.editable) == (None, str(project))
    (site / "sglang-0.5.11.dist-info/direct_url.json").write_text("[" * 100_000)
    assert survey(site).editable is None


def test_an_engine_of_another_shape_is_reported(tmp_path):
    found = survey(lay_out(tmp_path, {"sglang/__init__.py": ""}, version="9.9"))
    assert found.version == "9.9" and not found.algorithms and not found.backends
    assert len(found.notes) == 2


def test_without_a_registry_backends_go_by_their_files(site):
    (site / "sglang/srt/layers/attention/attention_registry.py").unlink()
    assert {"plain", "gated", "dropping", "chain", "updater"} == {
        b.name for b in survey(site).backends if b.class_name != "BlindBackend"
    }


@pytest.mark.parametrize("packed", [False, True])
def test_an_editable_install_is_read_from_its_checkout(site, tmp_path, packed):
    project = tmp_path / "checkout/python"
    (site / "sglang").rename(tmp_path / "moved")
    project.mkdir(parents=True)
    (tmp_path / "moved").rename(project / "sglang")
    git = project.parent / ".git"
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    commit = "0123456789abcdef0123456789abcdef01234567"
    if packed:
        (git / "packed-refs").write_text(f"# pack-refs\n{commit} refs/heads/main\n")
    else:
        (git / "refs/heads/main").write_text(f"{commit}\n")
    origin = {"url": f"file://{project}", "dir_info": {"editable": True}}
    (site / "sglang-0.5.11.dist-info/direct_url.json").write_text(json.dumps(origin))
    found = survey(site)
    assert found.commit == commit and found.editable == str(project)
    assert not found.changes.compared
    assert backends(found)["plain", "PlainBackend"].verdict == "yes"


def test_the_operation_prefers_the_current_release(site, tmp_path):
    venv = tmp_path / "venv"
    root = tmp_path / "root"
    (root / "releases").mkdir(parents=True)
    result = op_survey({"root": str(root), "base": str(venv)}, silent)
    assert codec.from_dict(Survey, json.loads(json.dumps(result))).version == "0.5.11"
    (root / "current").symlink_to(venv)
    result = op_survey({"root": str(root), "base": "/nowhere"}, silent)
    assert result["location"].startswith(str(root / "current"))
    with pytest.raises(InputError) as refused:
        op_survey({"root": str(tmp_path / "other")}, silent)
    assert refused.value.id == "survey-environment"


def test_reports(site):
    patch_set = PatchSet("set", "sglang", "0.5.11", [], [NewFile("sglang/new.py", "", "2" * 64)], "d")
    result = op_survey({"environment": str(site), "patch_set": codec.to_dict(patch_set)}, silent)
    for width in (40, 160):
        console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
        render(console, result, host="gpu1", verbose=width > 100)
        text = console.export_text()
        assert "gpu1: sglang 0.5.11" in text and "DDTREE" in text
    assert "build_tree_kernel" in text
    markdown = to_markdown(codec.from_dict(Survey, result))
    assert "| gated | GatedBackend | only if topk > 1 |" in markdown
    assert "sglang/new.py" in markdown


def test_names_that_are_no_utf8_can_be_written(site, tmp_path):
    (site / os.fsdecode(b"sglang/a\xff.py")).touch()
    write_markdown(tmp_path / "survey.md", op_survey({"environment": str(site)}, silent))
    assert "sglang/a\\udcff.py" in (tmp_path / "survey.md").read_text("utf-8")
