"""Folders of packages without metadata in a donor or a base, as somebody copied them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import venvs
from donor_steps import brought, inventory, tree_of

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.release.executor import apply_plan

SITE = venvs.SITE


class TestPackagesWithoutMetadata:
    VERSION = "__version__ = '2.11.0+cu130'\ncuda = '13.0'\n"

    @pytest.fixture
    def bare(self, donor: Path) -> Path:
        """Folders as somebody copied them, and a package whose RECORD was not."""
        site = donor / SITE
        for path, text in {
            "torch/version.py": self.VERSION,
            "torch/lib/libtorch.so": "libtorch",
            "torchgen/__init__.py": "",
            "functorch/__init__.py": "",
            "triton/__init__.py": "__version__ = '3.6.0'\n",
            "sgl_kernel/version.py": '__version__ = "0.4.2"\n',
            "sgl_kernel/common_ops.abi3.so": "ops",
            "nvidia/cu13/lib/libcudart.so.13": "cudart",
            "nvidia/cudnn/lib/libcudnn.so.9": "cudnn",
        }.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_text(text)
        (site / "native-3.0.dist-info" / "RECORD").write_bytes(b"")  # a power cut left it like this
        return donor

    PACKAGES: ClassVar = {
        "torch": "2.11.0",
        "triton": "3.6.0",
        "sglang-kernel": "0.4.2",
        "nvidia": "13",
        "native": "3.0",
    }

    def test_they_are_facts(self, bare: Path) -> None:
        from ddtree_deploy.facts.venv import probe_venv

        venv = probe_venv(str(bare))
        found = {p.name: (p.version, p.abi_tag, p.record) for p in venv.packages if p.bare or p.name == "native"}
        assert found == {
            "torch": ("2.11.0+cu130", "cu130", False),
            "triton": ("3.6.0", None, False),
            "sglang-kernel": ("0.4.2", None, False),
            "nvidia": ("13", "cu13", False),
            "native": ("3.0", None, False),
        }
        (bare / SITE / "torch" / "lib" / "libtorch.so").write_text("another libtorch")
        assert probe_venv(str(bare)).fingerprint != venv.fingerprint

    def test_they_come_with_metadata_of_their_own(self, bare: Path, root: Path, base: Path) -> None:
        found = inventory(bare, self.PACKAGES)
        assert [note["id"] for note in found["notes"]] == ["no-record"] * 5
        tree = tree_of(root, brought(bare, root, base, self.PACKAGES))
        site = tree / SITE
        for path in ("torch/lib/libtorch.so", "torchgen/__init__.py", "functorch/__init__.py", "native/lib.so"):
            assert (site / path).read_bytes() == (bare / SITE / path).read_bytes()
        record = (site / "torch-2.11.0+cu130.dist-info" / "RECORD").read_text()
        assert f"torch/version.py,{venvs.record_hash(self.VERSION.encode())},{len(self.VERSION)}\n" in record
        assert "functorch/__init__.py," in record and "torch-2.11.0+cu130.dist-info/METADATA," in record
        record = (site / "native-3.0.dist-info" / "RECORD").read_text()
        assert "native/lib.so,sha256=" in record and record.count("dist-info/RECORD,") == 1
        assert not (site / "some_lib").exists()
        listed = venvs.run([venvs.UV, "pip", "list", "--format", "json", "--target", site]).stdout
        assert '"name":"sglang-kernel","version":"0.4.2"' in listed

    def test_a_donor_on_the_host_itself(self, bare: Path, root: Path, base: Path) -> None:
        before = venvs.tree_state(bare)
        install = [(name, version, []) for name, version in self.PACKAGES.items()]
        overlay = venvs.overlay_action(install, [], {"kind": "donor", "location": str(bare)})
        actions = [venvs.clone_action(base, "test-1", "d" * 64), overlay, venvs.activate_action()]
        result = apply_plan({"plan": venvs.make_plan(root, base, "test-1", actions), "blobs": {}}, silent)
        release = root / "releases" / "test-1"
        assert (release / SITE / "torch" / "version.py").read_text() == self.VERSION
        assert (release / SITE / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").exists()
        assert sum(note["id"] == "no-record" for note in result["notes"]) == 5
        assert venvs.tree_state(bare) == before
        # the next overlay finds what to remove
        overlay = venvs.overlay_action([], ["torch", "nvidia"], {"kind": "index"})
        actions = [venvs.clone_action(release, "test-2", "e" * 64), overlay, venvs.activate_action()]
        other = root.with_name("other")
        apply_plan({"plan": venvs.make_plan(other, release, "test-2", actions, "e" * 64), "blobs": {}}, silent)
        left = {path.name for path in (other / "releases" / "test-2" / SITE).iterdir()}
        assert not left & {"torch", "torchgen", "functorch", "nvidia"} and "triton" in left

    def test_hand_made_folders_in_a_base_are_removed_whole(self, bare: Path, root: Path) -> None:
        overlay = venvs.overlay_action([], ["torch", "sglang-kernel"], {"kind": "index"})
        actions = [venvs.clone_action(bare, "test-1", "d" * 64), overlay, venvs.activate_action()]
        apply_plan({"plan": venvs.make_plan(root, bare, "test-1", actions), "blobs": {}}, silent)
        left = {path.name for path in (root / "releases" / "test-1" / SITE).iterdir()}
        assert left & {"torch", "torchgen", "functorch", "sgl_kernel"} == set()
        assert {"triton", "nvidia", "some_lib"} <= left
