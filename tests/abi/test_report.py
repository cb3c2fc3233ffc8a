"""What people, code hosts and --explain are given."""

import io
import json
import re
from pathlib import Path

import pytest
from abi.fixtures import Venv
from abi.torch_cuda_cases import DRIFTED
from rich.console import Console

from ddtree_deploy import __version__
from ddtree_deploy.abi.audit import op_audit
from ddtree_deploy.abi.explain import EXPLANATIONS, explain
from ddtree_deploy.abi.report import causes, exit_code, render, write_sarif
from ddtree_deploy.abi.sarif import sarif
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError

RULES = Path(__file__).parents[2] / "ddtree_deploy/abi/rules"


@pytest.fixture
def report(venv: Venv) -> dict[str, object]:
    venv.torch()
    other = venv.foreign("libcudart.so.12", "void cudaMalloc(void) {}")
    venv.kernel("kernel", DRIFTED + ' extern "C" void cudaMalloc(); void more() { cudaMalloc(); }', str(other))
    return op_audit({"path": str(venv.root), "environment": {}}, silent)


def shown(report: dict[str, object], verbose: bool = False) -> str:
    stream = io.StringIO()
    render(Console(file=stream, width=200), report, verbose=verbose)
    return stream.getvalue()


def test_one_cause_is_one_block(report: dict[str, object]) -> None:
    groups = list(causes(report))
    assert [finding["id"] for finding in groups[0]] == ["cuda-major-mismatch", "undefined-torch-symbol"]
    text = shown(report)
    assert len(re.findall(r"^error ", text, re.MULTILINE)) == 1
    assert "c10::device_count_v2(int)" in text and "libcudart.so.12" in text
    assert "fails" in text and "fix" in text and "2 errors" in text
    assert exit_code(report) == 1


def test_notes_are_a_line_each_unless_verbose(report: dict[str, object]) -> None:
    assert re.search(r"^note +no NVIDIA driver on this host +\[driver-missing\]$", shown(report), re.MULTILINE)
    assert "nvidia.com" not in shown(report) and "expected on a host without a GPU" in shown(report, verbose=True)


def test_a_clean_environment_says_so(venv: Venv) -> None:
    venv.install("plain", "1.0", [venv.write("plain/__init__.py")])
    report = op_audit({"path": str(venv.root), "environment": {}}, silent)
    assert "nothing found in 1 packages" in shown(report) and exit_code(report) == 0


def test_sarif_has_a_rule_and_a_place_for_every_result(report: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "abi.sarif"
    write_sarif(path, report)
    document = json.loads(path.read_text())
    assert document == sarif(report, __version__) and document["version"] == "2.1.0"
    (run,) = document["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert run["originalUriBaseIds"]["ENVIRONMENT"]["uri"].endswith("/")
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in ("error", "warning", "note") and result["message"]["text"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]


def test_sarif_that_cannot_be_written_is_bad_input(report: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        write_sarif(tmp_path / "absent" / "abi.sarif", report)
    assert error.value.id == "cannot-write"


def test_every_id_that_a_rule_uses_is_explained_and_none_else() -> None:
    texts = [path.read_text() for path in RULES.glob("*.py")]
    used = {id for text in texts for id in re.findall(r"\bid=\"([a-z0-9-]+)\"", text)}
    used |= {
        id for text in texts for id in re.findall(r"^        \"(undefined-[a-z-]+|old-cxx-abi)\": \($", text, re.M)
    }
    assert used == set(EXPLANATIONS)


@pytest.mark.parametrize("id", sorted(EXPLANATIONS))
def test_explanations_say_what_it_is_and_what_one_sees(id: str) -> None:
    text = explain(id)
    assert text.startswith(f"{id}: ") and "What one sees: " in text


def test_an_unknown_id_names_those_that_exist() -> None:
    with pytest.raises(InputError) as error:
        explain("no-such-finding")
    assert error.value.id == "unknown-finding" and "old-cxx-abi" in str(error.value.hint)
