"""Asking an engine for a completion."""

from __future__ import annotations

import json
import urllib.request
from typing import Any


def generate(port: int, tokens: int = 64) -> dict[str, Any]:
    """A greedy completion of ``tokens`` tokens by the engine's own endpoint, which also counts verify steps."""
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"text": "<|endoftext|>def main():\n", "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.loads(answer.read())


def chat(port: int, model: str) -> str:
    """The text of a greedy OpenAI chat completion of 8 tokens."""
    asked = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    body = json.dumps({**asked, "temperature": 0, "ignore_eos": True}).encode()
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer = json.loads(response.read())
    assert answer["usage"]["completion_tokens"] == 8, answer
    return answer["choices"][0]["message"]["content"]
