"""The checks of ``verify --gpu``: the tree kernels, and engines with a small pair of models.

Runs in the release's Python, started by ``verify/on_gpu.py``; what it says travels as that of ``probe.py`` does. On the
device ``cpu`` the same checks judge a CPU engine, which is how they are tested.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from ddtree_deploy.verify.gpu import kernels
from ddtree_deploy.verify.gpu.reference import (
    Adjust,
    Reference,
    Tokens,
    bias,
    frequency_and_presence,
    not_before,
)
from ddtree_deploy.verify.gpu.server import Client, EngineFailed, Server, free_ports
from ddtree_deploy.verify.gpu.statistics import chi_square
from ddtree_deploy.verify.gpu.storm import storm
from ddtree_deploy.verify.probe import Failed, Report, Skipped

BUDGET = 31  # of the engine whose tokens per verify step are known
# How far below the best logit of the reference a chosen token may be. In bf16 on a CPU it was 0.074 at most in
# 3840 tokens; bf16 has steps of 0.125 at the largest logits of this pair.
BOUNDS = {"bfloat16": 0.25, "float32": 2e-3}
# Relative error of a probability: 0.034 in bf16 (root of the noncentrality a draw), by transformers.
SPREADS = {"bfloat16": 0.05, "float32": 0.0}
ACCEPTANCE_WITHIN = 0.05
STOP_PROMPTS = (2, 21)  # the reference's first 20 tokens are far ahead of the second best: by 6.3 and 3.5
SAMPLED_PROMPT, TEMPERATURE, TOP_K = 20, 0.8, 40  # 3 nats of entropy after it
# With the largest penalties these repeat tokens within a step: where only committed tokens are counted, not those on
# the way to a node, answers change.
PENALISED_PROMPTS = (3, 7, 8, 13, 22, 23)
STOP_DEPTHS = 18  # the longest path of a step has 16 tokens


@dataclass(frozen=True)
class Size:
    """How much is asked. ``accepted``: tokens per verify step with BUDGET nodes for these prompts and tokens, in
    float32 on a CPU (docs/acceptance.md has the full size's; in bf16 there it was 4.40)."""

    prompts: int
    tokens: int
    concurrency: Tuple[int, int]
    accepted: float
    draws: int
    depths: Sequence[int]
    requests: int


SIZES = {
    "full": Size(24, 160, (1, 16), 4.41, 2000, range(1, STOP_DEPTHS), 300),
    "small": Size(6, 48, (1, 4), 4.11, 400, (1, 2, 5, 9, 16), 32),
}


class Session:
    """Engines and reference, made when the first check needs them."""

    def __init__(self, device: str, pair: str, folder: str, arguments: Sequence[str], dtype: str, size: str) -> None:
        """``pair`` has ``target`` and ``draft``; logs go to ``folder``; ``arguments`` are for every engine."""
        self.device = device
        self.pair = Path(pair)
        self.folder = Path(folder)
        self.arguments = list(arguments)
        self.size = SIZES[size]
        self.bound, self.spread = BOUNDS[dtype], SPREADS[dtype]
        self.prompts: List[List[int]] = json.loads((Path(__file__).parent / "prompts.json").read_text("utf-8"))
        self.servers: Dict[str, Server] = {}
        self.engines: Dict[str, Client] = {}  # that have answered
        self._reference: Any = None

    def checks(self) -> Dict[str, Callable[[], Report]]:
        return {
            "gpu-kernels": self.check_kernels,
            "gpu-engine": self.check_engine,
            "gpu-greedy": self.check_greedy,
            "gpu-sampling": self.check_sampling,
            "gpu-stops": self.check_stops,
            "gpu-penalties": self.check_penalties,
            "gpu-pool": self.check_pool,
        }

    def finish(self) -> None:
        for server in self.servers.values():
            server.stop()

    # -- what the checks share

    def start(self) -> None:
        """Begin to start the engines: one with a budget that does not change, and on a GPU one with ``auto``."""
        if self.servers:
            return
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        environment["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE"] = "1"  # a leaked slot ends the engine
        environment.pop("TRITON_INTERPRET", None)
        graphs = self.device == "cuda" and "--disable-cuda-graph" not in self.arguments  # which auto needs
        budgets = [str(BUDGET), "auto"] if graphs else [str(BUDGET)]
        ports = free_ports(2 * len(budgets))
        for number, budget in enumerate(budgets):
            port, nccl_port = ports[2 * number : 2 * number + 2]
            command = [sys.executable, "-m", "sglang.launch_server"]
            command += ["--model-path", str(self.pair / "target"), "--host", "127.0.0.1", "--port", str(port)]
            command += ["--nccl-port", str(nccl_port), "--speculative-algorithm", "DDTREE"]
            command += ["--speculative-draft-model-path", str(self.pair / "draft")]
            command += ["--speculative-ddtree-budget", budget, "--skip-server-warmup", *self.arguments]
            self.servers[budget] = Server(command, port, self.folder / f"engine-{budget}.log", environment)

    def reference(self) -> Any:
        if self._reference is None:
            self._reference = Reference(self.pair / "target")
        return self._reference

    @cached_property
    def expected_paths(self) -> Dict[int, Dict[Tuple[int, ...], float]]:
        """Number of tokens -> the probabilities of so many, from those on that a few draws fall on."""
        reference, prompt, least = self.reference(), self.prompts[SAMPLED_PROMPT], 4.0 / self.size.draws
        return {length: reference.paths(prompt, length, TEMPERATURE, TOP_K, least) for length in (1, 2, 3)}

    @cached_property
    def expected_stops(self) -> Dict[int, Tuple[List[int], float]]:
        """Prompt -> its greedy answer, and the smallest lead of a token in it."""
        return {number: self.reference().greedy(self.prompts[number], STOP_DEPTHS) for number in STOP_PROMPTS}

    def engine(self) -> Client:
        """The engine that most checks ask: with ``auto`` where there is one, since that is what a GPU serves with."""
        return list(self.running().values())[-1]

    def running(self) -> Dict[str, Client]:
        if not self.engines:
            raise Skipped("no engine runs")
        return self.engines

    def judge(
        self,
        what: str,
        prompts: Sequence[Tokens],
        answers: Sequence[Tokens],
        adjust: Sequence[Adjust] = (),
    ) -> Tuple[int, float]:
        """(answers of best tokens alone, largest gap); fails where a token is further off than rounding explains."""
        gaps = self.reference().gaps(prompts, answers, adjust)
        worst, number, at = max((gap, n, i) for n, row in enumerate(gaps) for i, gap in enumerate(row))
        if not worst <= self.bound:
            off = sum(max(row) > self.bound for row in gaps)
            raise Failed(
                "wrong-value",
                f"{what}: {off} of {len(answers)} answers have a token that the target does not choose; the worst, "
                f"token {at} of answer {number}, is {worst:.3g} below the best logit where {self.bound} is allowed",
                gap=worst,
            )
        return sum(max(row) == 0.0 for row in gaps), worst

    # -- the checks

    def check_kernels(self) -> Report:
        if self.device == "cpu":
            os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
        self.start()  # they import and load meanwhile
        try:
            return kernels.run(self.device), {}
        except AssertionError as error:
            raise Failed("wrong-value", str(error)) from error

    def check_engine(self) -> Report:
        self.start()
        # What the target says without an engine, while they load. Where that fails, those who need it will say so.
        with contextlib.suppress(Exception):
            self.expected_stops  # noqa: B018
        with contextlib.suppress(Exception):
            self.expected_paths  # noqa: B018
        seconds = {}
        for budget, server in self.servers.items():
            try:
                seconds[budget] = round(server.wait(), 1)
            except EngineFailed as error:
                raise engine_failed(error, f"with a budget of {budget}: ") from error
        self.engines = dict(self.servers)
        said = ", ".join(f"{budget} after {taken:.0f} s" for budget, taken in seconds.items())
        return f"engines answer, by their budgets: {said}", {"seconds": seconds}

    def check_greedy(self) -> Report:
        size = self.size
        prompts = self.prompts[: size.prompts]
        said: List[str] = []
        data: Dict[str, Any] = {}
        for budget, engine in self.running().items():
            for concurrency in size.concurrency if budget == str(BUDGET) else size.concurrency[1:]:
                what = f"budget {budget}, {concurrency} at a time"
                answers = engine.generate_all(prompts, concurrency, max_new_tokens=size.tokens)
                outputs = [list(answer["output_ids"]) for answer in answers]
                short = [len(output) for output in outputs if len(output) != size.tokens]
                if short:
                    raise Failed("wrong-value", f"{what}: answers of {short} tokens where {size.tokens} were asked")
                same, gap = self.judge(what, prompts, outputs)
                per_step = size.tokens * len(prompts) / sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
                data[what] = {"identical": same, "gap": gap, "tokens_per_step": per_step}
                said.append(f"{what}: {same} of {len(prompts)} all best, gap {gap:.2g}, {per_step:.2f} a step")
                if budget == str(BUDGET) and abs(per_step / size.accepted - 1) > ACCEPTANCE_WITHIN:
                    raise Failed(
                        "wrong-value",
                        f"{what}: {per_step:.2f} tokens per verify step where {size.accepted} are known: the text is "
                        "right, but drafts are made from the wrong features, or the tree is not the best one",
                        **data,
                    )
        return "; ".join(said), data

    def check_sampling(self) -> Report:
        prompt, draws, engine = self.prompts[SAMPLED_PROMPT], self.size.draws, self.engine()
        sampling = {"max_new_tokens": 3, "temperature": TEMPERATURE, "top_k": TOP_K}
        answers = engine.generate_all([prompt] * draws, 32, **sampling)
        outputs = [tuple(answer["output_ids"]) for answer in answers]
        said: List[str] = []
        data: Dict[str, Any] = {}
        # The first token comes from prefill, the second from the root of a tree, the third mostly from a node of it.
        for length, paths in self.expected_paths.items():
            counts: Dict[Tuple[int, ...], int] = {}
            for output in outputs:
                counts[output[:length]] = counts.get(output[:length], 0) + 1
            fit = chi_square(counts, paths, self.spread)
            data[str(length)] = {"chi2": fit.chi2, "freedom": fit.freedom, "bound": fit.bound}
            if not fit.fits:
                raise Failed(
                    "wrong-value",
                    f"{draws} draws of {length} tokens do not fit the target's probabilities: "
                    f"chi-square {fit.chi2:.1f} over {fit.freedom} degrees of freedom, {fit.bound:.1f} is allowed",
                    **data,
                )
            said.append(f"{fit.chi2:.1f} of {fit.bound:.1f}")
        likely = self.reference().probabilities([prompt], TEMPERATURE, 2 * TOP_K)[0]
        stray = sum(output[0] not in likely for output in outputs)
        if stray:
            raise Failed(
                "wrong-value", f"{stray} of {draws} first tokens are not among the best: top_k={TOP_K} is ignored"
            )
        return f"{draws} draws fit: chi-square after 1, 2, 3 tokens {', '.join(said)} allowed", data

    def check_stops(self) -> Report:
        engine = self.engine()
        asked = 0
        for number, (full, margin) in self.expected_stops.items():
            prompt = self.prompts[number]
            if margin < 2 * self.bound:
                raise Failed("wrong-value", f"prompt {number} has a near-tie ({margin:.3f}): the pair is another one")
            for depth in self.size.depths:
                stop = full[depth]
                until = full[: full.index(stop) + 1]
                for what, wanted, reason, sampling in (
                    (f"max_new_tokens={depth}", full[:depth], "length", {"max_new_tokens": depth}),
                    (f"the stop token {stop}", until, "stop", {"stop_token_ids": [stop], "ignore_eos": False}),
                ):
                    answer = engine.generate(prompt, **sampling)
                    got, ended = list(answer["output_ids"]), answer["meta_info"]["finish_reason"]["type"]
                    asked += 1
                    if got != wanted or ended != reason:
                        raise Failed(
                            "wrong-value",
                            f"{what} should end an answer after {len(wanted)} tokens ({reason}); it ended after "
                            f"{len(got)} ({ended})" + ("" if got[: len(wanted)] == wanted else ", with other tokens"),
                            expected=wanted,
                            got=got,
                        )
        return f"{asked} answers end at the right token, at depths from 1 to {max(self.size.depths)}", {}

    def check_penalties(self) -> Report:
        prompts = [self.prompts[number] for number in PENALISED_PROMPTS]
        engine = self.engine()
        said: List[str] = []
        data: Dict[str, Any] = {}
        for name, sampling, adjust in self.penalties():
            answers = engine.generate_all(prompts, len(prompts), **{"max_new_tokens": 48, **sampling})
            outputs = [list(answer["output_ids"]) for answer in answers]
            same, gap = self.judge(name, prompts, outputs, [adjust] * len(prompts))
            # Without this the check could not fail: the penalty must have changed an answer.
            free = max(max(row) for row in self.reference().gaps(prompts, outputs))
            data[name] = {"identical": same, "gap": gap, "gap_without": free}
            if free <= self.bound:
                raise Failed("wrong-value", f"{name} changed no answer", **data)
            said.append(f"{name} (gap {gap:.2g}, {free:.2g} without)")
        return "; ".join(said), data

    def penalties(self) -> List[Tuple[str, Dict[str, Any], Adjust]]:
        common = most_common(self.reference().greedy(self.prompts[0], 12)[0])
        minimum = {"min_new_tokens": 24, "stop_token_ids": [common], "ignore_eos": False}
        end = 0  # the pair's end of text
        return [
            (
                "frequency and presence penalties",
                {"frequency_penalty": 2.0, "presence_penalty": 2.0, "max_new_tokens": 96},
                frequency_and_presence(2.0, 2.0),
            ),
            ("a logit bias", {"logit_bias": {str(common): -100.0, "120": 4.0}}, bias({common: -100.0, 120: 4.0})),
            ("min_new_tokens", minimum, not_before(24, [common, end])),
        ]

    def check_pool(self) -> Report:
        engine = self.engine()
        engine.flush()
        before = engine.wait_until_idle()
        counts = storm(engine, self.prompts, self.size.requests)
        after = engine.wait_until_idle()
        data: Dict[str, Any] = {"ended": dict(counts), "before": before, "after": after}
        held = [name for name in ("num_running_reqs", "num_waiting_reqs", "num_used_tokens") if after[name]]
        if held:
            said = ", ".join(f"{name} is {after[name]}" for name in held)
            raise Failed("wrong-value", f"after {sum(counts.values())} requests, {said}", **data)
        if after["max_total_num_tokens"] != before["max_total_num_tokens"]:
            raise Failed("wrong-value", "the KV pool has another size than before", **data)
        bad = {reason: count for reason, count in counts.items() if reason not in ("stop", "length", "abort")}
        if bad:
            raise Failed("wrong-value", f"requests ended with {bad}", detail=engine.tail(), **data)
        # What they left in the radix cache is right, and a flush takes it away.
        prompt = self.prompts[0]
        outputs, cached = [], []
        for flush in (False, False, True):
            if flush:
                engine.flush()
            answer = engine.generate(prompt, max_new_tokens=self.size.tokens)
            outputs.append(list(answer["output_ids"]))
            cached.append(int(answer["meta_info"]["cached_tokens"]))
        self.judge("after the requests", [prompt] * len(outputs), outputs)
        if cached[2] != 0 or (cached[1] == 0 and "--disable-radix-cache" not in self.arguments):
            said = f"{cached[1]} tokens of a prompt asked before were cached, {cached[2]} after a flush"
            raise Failed("wrong-value", said, **data)
        used = engine.wait_until_idle()["num_used_tokens"]
        trouble = [line for one in self.running().values() for line in one.trouble()]
        if used or trouble:
            said = trouble[0] if trouble else f"{used} tokens are in use"
            raise Failed("wrong-value", f"after all requests: {said}", detail=engine.tail(), **data)
        endings = ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items()))
        data["warning"] = not counts["abort"]
        return f"{endings}; no slot is in use, {cached[1]} and after a flush 0 tokens of a prompt are cached", data


def engine_failed(error: EngineFailed, where: str = "") -> Failed:
    return Failed("engine-failed", f"{where}{error}", detail=error.detail)


def most_common(tokens: Sequence[int]) -> int:
    return max(tokens, key=list(tokens).count)


def guarded(check: Callable[[], Report]) -> Callable[[], Report]:
    """What goes wrong in a check is its failure: an engine that dies, with the end of its log, and anything else."""

    def run() -> Report:
        try:
            return check()
        except (Failed, Skipped, ModuleNotFoundError):
            raise
        except EngineFailed as error:
            raise engine_failed(error) from error
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0]
            raise Failed("check-error", f"{type(error).__name__}: {first}", traceback.format_exc()) from error

    return run


def load_settings(path: Path) -> Session:
    return Session(**json.loads(path.read_text("utf-8")))


def main(arguments: List[str]) -> None:
    """``arguments``: the file of settings, then what ``probe.main`` takes."""
    probe = importlib.import_module("ddtree_deploy.verify.probe")
    session = load_settings(Path(arguments[0]))
    probe.main(arguments[1:], {name: guarded(check) for name, check in session.checks().items()}, session.finish)
