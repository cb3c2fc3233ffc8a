"""The shipped patch set against the released engine from the package index."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from patching_tree import snapshot

from ddtree_deploy import codec
from ddtree_deploy.errors import InputError
from ddtree_deploy.patching.commands import apply_path, check_path, export_path, reverse_path
from ddtree_deploy.patching.series import load_patch_set, patch_sets
from ddtree_deploy.survey.scan import survey

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]


def install(target, requirement):
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    assert uv, "uv comes with the project's dependencies"
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(target)]
    subprocess.run([*command, requirement], check=True)
    return target


@pytest.fixture(scope="module", params=patch_sets())
def patch_set(request):
    return load_patch_set(request.param)


@pytest.fixture(scope="module")
def released(patch_set, tmp_path_factory):
    """The engine as released: its package and dist-info, installed by uv as hard links to its cache."""
    requirement = f"{patch_set.distribution}=={patch_set.version}"
    return install(tmp_path_factory.mktemp("released"), requirement)


@pytest.fixture
def site(released, tmp_path):
    """A copy that shares its inodes, as a clone does."""
    shutil.copytree(released, tmp_path / "site", copy_function=lambda source, target: Path(target).hardlink_to(source))
    return tmp_path / "site"


@pytest.fixture(scope="module")
def wheel(patch_set, released, tmp_path_factory):
    """The package's files zipped again: what the wheel holds of them, since RECORD vouches for each."""
    path = tmp_path_factory.mktemp("wheel") / f"{patch_set.distribution}-{patch_set.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted((released / patch_set.distribution).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                archive.write(file, file.relative_to(released).as_posix())
    return path


def test_apply_reverse_and_export(patch_set, released, site, wheel, tmp_path):
    before = snapshot(released)
    assert check_path(site).summary == "pristine"
    assert apply_path(site).summary == "applied"
    assert apply_path(site).outcome.changed == []
    exported = export_path(site, wheel, tmp_path / patch_set.name)
    assert exported.digest == patch_set.digest or {p.path for p in exported.patches} == {
        p.path for p in patch_set.patches
    }
    for ours, again in zip(sorted(patch_set.patches, key=path), sorted(exported.patches, key=path), strict=True):
        assert (ours.sha256_before, ours.sha256_after) == (again.sha256_before, again.sha256_after)
    assert reverse_path(site).summary == "pristine"
    assert snapshot(site) == before == snapshot(released)
    assert apply_path(site, str(tmp_path / patch_set.name)).summary == "applied"
    assert snapshot(released) == before


def path(patch):
    return patch.path


def test_an_edit_is_explained_against_the_wheel(patch_set, site, wheel):
    target = site / patch_set.patches[0].path
    content = target.read_bytes()
    target.unlink()
    target.write_bytes(b"# local change\n" + content)
    report = check_path(site, wheel=wheel)
    assert report.exit_code == 1
    (state,) = [state for state in report.files if state.state == "edited"]
    assert "+# local change" in state.edits
    assert {hunk.status for hunk in state.hunks} == {"moved"}
    with pytest.raises(InputError) as refused:
        apply_path(site)
    assert refused.value.id == "file-edited"


def verdicts(found):
    return {(b.name, b.class_name): b.verdict for b in found.backends}


def test_survey_of_the_released_and_the_patched_engine(patch_set, site):
    if patch_set.version != "0.5.11":
        pytest.skip("the table below is for 0.5.11")
    found = survey(site, patch_set=patch_set)
    assert found.changes == codec.from_dict(type(found.changes), {"compared": True})
    assert verdicts(found) == VERDICTS_0_5_11
    assert [a.name for a in found.algorithms] == ["DFLASH", "EAGLE", "EAGLE3", "STANDALONE", "NGRAM", "NONE"]
    assert {state.state for state in found.patch.files} == {"pristine"}
    apply_path(site)
    found = survey(site, patch_set=patch_set)
    assert found.applied_patch_set == patch_set.name
    assert verdicts(found)["torch_native", "TorchNativeAttnBackend"] == "yes"
    assert verdicts(found)["triton", "TritonAttnBackend"] == "yes"
    algorithms = {a.name: a.predicates for a in found.algorithms}
    assert {"is_dflash", "is_ddtree"} <= set(algorithms["DDTREE"])
    assert "is_ddtree" not in algorithms["DFLASH"]
    assert ("module", "ddtree_utils") in {(c.kind, c.name) for c in found.components}
    assert {state.state for state in found.patch.files} == {"applied"}


# As read by hand, backend by backend, in 0.5.11's source.
VERDICTS_0_5_11 = {
    ("flashinfer", "FlashInferAttnBackend"): "yes",
    ("flashinfer", "FlashInferMLAAttnBackend"): "no",
    ("trtllm_mla", "TRTLLMMLABackend"): "no",
    ("aiter", "AiterAttnBackend"): "yes",
    ("wave", "WaveAttnBackend"): "yes",
    ("ascend", "AscendAttnBackend"): "no",
    ("nsa", "NativeSparseAttnBackend"): "no",
    ("triton", "TritonAttnBackend"): "yes",
    ("torch_native", "TorchNativeAttnBackend"): "no",
    ("flex_attention", "TorchFlexAttnBackend"): "no",
    ("flashmla", "FlashMLABackend"): "no",
    ("fa3", "FlashAttentionBackend"): "only if topk > 1",
    ("fa3", "MusaFlashAttentionBackend"): "only if topk > 1",
    ("fa4", "FlashAttentionBackend"): "only if topk > 1",
    ("cutlass_mla", "CutlassMLABackend"): "no",
    ("trtllm_mha", "TRTLLMHAAttnBackend"): "no",
    ("intel_amx", "IntelAMXAttnBackend"): "no",
    ("dual_chunk_flash_attn", "DualChunkFlashAttentionBackend"): "no",
    ("intel_xpu", "XPUAttentionBackend"): "only if topk > 1",
    ("HybridAttnBackend", "HybridAttnBackend"): "as wrapped",
    ("HybridLinearAttnBackend", "HybridLinearAttnBackend"): "as wrapped",
    ("TboAttnBackend", "TboAttnBackend"): "as wrapped",
    ("GDNAttnBackend", "GDNAttnBackend"): "only if topk > 1",
    ("KDAAttnBackend", "KDAAttnBackend"): "no",
    ("Mamba2AttnBackend", "Mamba2AttnBackend"): "no",
    ("LightningAttentionBackend", "LightningAttentionBackend"): "no",
}


@pytest.mark.parametrize("version", ["0.4.9", "0.5.12.post1", "0.5.14"])
def test_other_versions_are_surveyed(version, tmp_path):
    found = survey(install(tmp_path, f"sglang=={version}"))
    assert found.version == version
    assert {"EAGLE", "NONE"} <= {a.name for a in found.algorithms}
    by_class = {b.class_name: b.verdict for b in found.backends}
    assert by_class["TritonAttnBackend"] == "yes"
    assert by_class["FlashAttentionBackend"] == "only if topk > 1"
    assert by_class["TorchNativeAttnBackend"] == "no"
    assert "unknown" not in by_class.values()
    assert any(a.name == "speculative_algorithm" for a in found.server_arguments)
    assert not [note for note in found.notes if "cannot be parsed" in note]
    if version.startswith("0.5."):
        workers = {c.kind for c in found.components if c.name.lower().startswith("dflashworker")}
        assert workers == ({"worker v2"} if version == "0.5.14" else {"worker v1"})
