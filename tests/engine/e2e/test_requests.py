"""What a request may ask of a DDTREE service, on one server with a budget of 31."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter

import pytest
from engine.reference import PlainReference, check_mixed_batch, check_row
from engine.support import Server, tokens_per_step


class TestRequests:
    def test_acceptance_at_31(self, ddtree: Server, plain: PlainReference) -> None:
        check_row(ddtree, plain, 31, (1, 4))

    @pytest.mark.parametrize("which", range(len(PlainReference.PENALTIES)))
    def test_penalties_and_bias(self, ddtree: Server, plain: PlainReference, which: int) -> None:
        params = plain.PENALTIES[which]
        answers = ddtree.generate_all(plain.prompts[:4], 2, max_new_tokens=48, **params)
        assert [a["output_ids"] for a in answers] == plain.penalised[which]

    def test_mixed_batch_keeps_greedy_answers(self, ddtree: Server, plain: PlainReference) -> None:
        check_mixed_batch(ddtree, plain)

    def test_sampling_is_not_greedy_and_fits_the_target(self, ddtree: Server, plain: PlainReference) -> None:
        """Chi-square of three sampled tokens; the second and third are chosen in trees."""
        draws = 600
        answers = ddtree.generate_all(
            [plain.sampling_prompt] * draws, 16, max_new_tokens=3, temperature=1.0, top_k=plain.TOP_K
        )
        counts = Counter(tuple(answer["output_ids"]) for answer in answers)
        assert set(counts) <= set(plain.pair_probs), "a token outside of top-k"
        assert len(counts) > 1
        chi2, cells, rest_seen, rest_expected = 0.0, 0, 0, 0.0
        for triple, p in plain.pair_probs.items():
            if draws * p >= 5:
                chi2 += (counts[triple] - draws * p) ** 2 / (draws * p)
                cells += 1
            else:
                rest_seen += counts[triple]
                rest_expected += draws * p
        if rest_expected >= 1:
            chi2 += (rest_seen - rest_expected) ** 2 / rest_expected
            cells += 1
        freedom = max(cells - 1, 1)
        # Wilson-Hilferty bound at about p = 1e-5.
        bound = freedom * (1 - 2 / (9 * freedom) + 4.3 * (2 / (9 * freedom)) ** 0.5) ** 3
        print(f"chi2 {chi2:.1f} over {freedom} degrees of freedom (bound {bound:.1f})")
        assert chi2 < bound

    @pytest.mark.parametrize("sampling", [{"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 8}, {"temperature": 0.4}])
    def test_sampling_parameters_run(self, ddtree: Server, plain: PlainReference, sampling: dict[str, float]) -> None:
        outputs = {
            tuple(a["output_ids"])
            for a in ddtree.generate_all(
                [plain.prompts[5]] * 4, 4, max_new_tokens=40, **{"temperature": 0.9, **sampling}
            )
        }
        assert len(outputs) > 1

    @pytest.mark.parametrize("length", range(1, 18))
    def test_max_new_tokens_at_every_depth(self, ddtree: Server, plain: PlainReference, length: int) -> None:
        answers = ddtree.generate_all(plain.prompts[:3], 3, max_new_tokens=length)
        for answer, expected in zip(answers, plain.outputs, strict=False):
            assert answer["output_ids"] == expected[:length]
            assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": length}

    def test_stop_tokens_at_every_depth(self, ddtree: Server, plain: PlainReference) -> None:
        for ids, expected in zip(plain.prompts[:3], plain.outputs, strict=False):
            for at in range(1, 20):
                answer = ddtree.generate(ids, stop_token_ids=[expected[at]], ignore_eos=False)
                first = expected.index(expected[at])
                assert answer["output_ids"] == expected[: first + 1]
                assert answer["meta_info"]["finish_reason"]["type"] == "stop"

    def test_stop_strings(self, ddtree: Server, plain: PlainReference) -> None:
        for ids, text in zip(plain.prompts[:4], plain.texts, strict=False):
            for at in (5, 23, 60):
                stop = text[at : at + 4]
                answer = ddtree.generate(ids, stop=[stop])
                assert answer["text"] == text[: text.index(stop)]

    def test_streaming(self, ddtree: Server, plain: PlainReference) -> None:
        """Several tokens a message, none twice, none missing, in the order of plain decoding."""
        body = {
            "input_ids": plain.prompts[2],
            "stream": True,
            "sampling_params": {"max_new_tokens": 160, "temperature": 0, "ignore_eos": True},
        }
        status, answer = ddtree.post("/generate", body)
        lines = [line.removeprefix("data: ") for line in answer["text"].splitlines() if line.startswith("data: ")]
        assert status == 200 and lines[-1] == "[DONE]"
        parts = [json.loads(line) for line in lines[:-1]]
        for part in parts:
            assert part["output_ids"] == plain.outputs[2][: len(part["output_ids"])]
            assert plain.texts[2].startswith(part["text"].rstrip("\ufffd"))
        assert parts[-1]["output_ids"] == plain.outputs[2] and parts[-1]["text"] == plain.texts[2]
        assert 1 < len(parts) < 160

    def test_second_turn_reuses_the_cache(self, ddtree: Server, plain: PlainReference) -> None:
        """Draft and target KV of committed paths in the radix cache are right."""
        ddtree.flush()
        ddtree.generate_all(plain.prompts[:8], 4)
        warm = ddtree.generate_all(plain.second_prompts, 4, max_new_tokens=60)
        cached = sum(a["meta_info"]["cached_tokens"] for a in warm)
        ddtree.flush()
        cold = ddtree.generate_all(plain.second_prompts, 4, max_new_tokens=60)
        assert [a["output_ids"] for a in warm] == plain.second_turns
        assert [a["output_ids"] for a in cold] == plain.second_turns
        assert cached > sum(map(len, plain.prompts[:8]))
        assert abs(tokens_per_step(warm) / tokens_per_step(cold) - 1) < 0.02

    @pytest.mark.parametrize(
        "body",
        [
            {"return_logprob": True},
            {"sampling_params": {"json_schema": '{"type": "object"}', "max_new_tokens": 4}},
            {"sampling_params": {"regex": "a+", "max_new_tokens": 4}},
        ],
    )
    def test_refused_requests(self, ddtree: Server, plain: PlainReference, body: dict[str, object]) -> None:
        status, answer = ddtree.post("/generate", {"input_ids": plain.prompts[0], **body})
        assert status == 400
        assert "DDTREE speculative decoding does not support" in str(answer)

    def test_chat_and_aborts_leave_no_slot_behind(self, ddtree: Server, plain: PlainReference) -> None:
        """Random requests with aborts; the scheduler's idle check ends it over a leaked slot."""
        rng = random.Random(0)

        def ask(i: int) -> None:
            ids = plain.prompts[rng.randrange(24)]
            sampling = {"max_new_tokens": rng.randrange(1, 90), "temperature": rng.choice([0, 0.8])}
            body = {"input_ids": ids, "sampling_params": sampling, "rid": f"r{i}"}
            if i % 5 == 0:
                threading.Timer(rng.random() * 0.3, lambda: ddtree.post("/abort_request", {"rid": f"r{i}"})).start()
            assert ddtree.post("/generate", body)[0] in (200, 400, 499, 500)

        for _ in range(4):
            threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        ddtree.flush()
        answer = ddtree.generate(plain.prompts[0])
        assert answer["output_ids"] == plain.outputs[0]
        assert ddtree.alive()
        log = ddtree.log.read_text(errors="replace")
        assert "leak" not in log and "Traceback" not in log
