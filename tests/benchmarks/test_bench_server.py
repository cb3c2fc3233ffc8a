"""Arguments, the workload's size, the rule for answers that differ, and files that survive a kill."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import acceptance
import bench_server
import pytest
import tensor_parallel


def test_a_rehearsal_runs_the_same_words_on_a_cpu():
    words = ["--attention-backend", "fa3", "--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", "auto"]
    on_gpu = bench_server.server_arguments(words, Path("/draft"), "cuda")
    assert on_gpu[-len(words) - 2 :] == [*words, "--speculative-draft-model-path", "/draft"]
    on_cpu = bench_server.server_arguments(words, Path("/draft"), "cpu")
    assert "auto" not in on_cpu and "--cuda-graph-max-bs" not in on_cpu
    # The last one counts.
    assert on_cpu[len(on_cpu) - 1 - on_cpu[::-1].index("--attention-backend") + 1] == "torch_native"
    assert "--speculative-draft-model-path" not in bench_server.server_arguments(
        ["--dtype", "float32"], Path("/d"), "cpu"
    )


@pytest.mark.parametrize(("concurrency", "count"), [(1, 8), (4, 8), (8, 16), (16, 48), (32, 96)])
def test_the_workload(concurrency, count):
    assert bench_server.request_count(concurrency) == count


class Judge:
    """Stands for plain decoding: always the same probabilities."""

    asked: list[int] | None = None

    def generate(self, ids, **_):
        self.asked = ids
        return {"meta_info": {"output_top_logprobs": [[[-0.5, 7, None], [-0.6, 8, None]]]}}


def test_a_differing_token_is_judged_by_its_gap():
    judge = Judge()
    gaps = bench_server.largest_gaps(judge, [[1, 2], [3]], [[5, 7, 9], [4]], [[5, 8, 1], [4]])
    assert judge.asked == [1, 2, 5] and gaps == [pytest.approx(0.1)]
    assert bench_server.largest_gaps(judge, [[1]], [[7]], [[99]]) == [float("inf")]


def test_saving_replaces_at_once(tmp_path: Path):
    path = tmp_path / "new" / "x.json"
    bench_server.save(path, {"a": 1})
    bench_server.save(path, {"a": 2})
    assert json.loads(path.read_text()) == {"a": 2} and list(path.parent.iterdir()) == [path]


def test_an_engine_that_ends_at_once_says_so(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    engine = bench_server.Engine("x", [], target=tmp_path, draft=tmp_path, logs=tmp_path / "logs", device="cpu")
    with pytest.raises(bench_server.EngineFailed, match="x did not come up"):
        engine.wait([1])
    engine.stop()


def test_acceptance_rows():
    rows = acceptance.plans(["float32", "bfloat16"], [15, 63])
    assert [(dtype, row) for dtype, row, _ in rows] == [
        ("float32", "plain"), ("float32", "15"), ("float32", "63"),
        ("bfloat16", "plain"), ("bfloat16", "15"), ("bfloat16", "63"),
    ]  # fmt: skip
    assert "DDTREE" not in rows[0][2] and rows[2][2][-1] == "63"
    assert acceptance.against(4.77, 4.822, 0.02) == {
        "tokens_per_step": 4.77, "authors": 4.822, "difference": -0.0108, "within": True,
    }  # fmt: skip
    assert not acceptance.against(4.6, 4.822, 0.02)["within"]
    assert acceptance.against(4.6, None, 0.02) == {"tokens_per_step": 4.6}


def test_the_prompts_and_rows_that_docs_name():
    folder = Path(bench_server.__file__).parent / "data"
    prompts = json.loads((folder / "prompts.json").read_text())
    acceptance_prompts = json.loads((Path(__file__).parents[1] / "engine" / "prompts.json").read_text())
    assert len(prompts) == 64 and prompts[:24] == acceptance_prompts
    authors = json.loads((folder / "authors.json").read_text())
    assert authors["tiny"]["float32"]["63"] == 4.822 and authors["nano"]["bfloat16"]["31"] == 4.425


def test_two_gpus_are_compared_with_one_and_with_plain_decoding():
    outputs = {
        "plain tp1": [[7, 9], [4]],
        "ddtree 63 tp1": [[7, 9], [4]],
        "ddtree 63 tp2": [[8, 9], [4]],
        "dflash tp2": [[7, 9], [4]],
    }
    results = {}
    tensor_parallel.compare(results, outputs, Judge(), [[1], [2]])
    assert results["compared"] == {
        "ddtree 63 tp1 against plain tp1": {"prompts": 2, "identical": 2, "largest_gap": 0.0},
        "ddtree 63 tp2 against plain tp1": {"prompts": 2, "identical": 1, "largest_gap": 0.1},
        "ddtree 63 tp2 against ddtree 63 tp1": {"prompts": 2, "identical": 1, "largest_gap": 0.1},
        "dflash tp2 against plain tp1": {"prompts": 2, "identical": 2, "largest_gap": 0.0},
    }
    tensor_parallel.compare(results, outputs, None, [[1], [2]])
    assert len(results["compared"]) == 4
