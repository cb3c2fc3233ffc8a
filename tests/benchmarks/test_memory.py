"""Memory of servers: what is subtracted from what, and what the log says of its parts."""

from __future__ import annotations

import os
import subprocess
import sys

import memory


def test_beyond_dflash():
    dflash = {"before": 4, "up": 46000, "long_request": 47000, "many_requests": 47100}
    ddtree = {"before": 4, "up": 46500, "long_request": 47300, "error": "EngineFailed: died"}
    assert memory.beyond(dflash, ddtree) == {"up": 500, "long_request": 300}


def test_resident_memory_is_that_of_the_group():
    program = "import sys; kept = bytearray(b'x') * (64 << 20); print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout.readline() == b"up\n"
        assert 64 <= memory.resident_mib(process.pid) < 160
        process.stdin.close()
        process.wait()
    assert memory.resident_mib(process.pid) == 0 != memory.resident_mib(os.getpgid(0))


def test_the_servers_own_account():
    log = (
        "[t] Load weight end. elapsed=1.00 s, type=Qwen3ForCausalLM, dtype=bfloat16, mem usage=13.90 GB.\n"
        "[t] KV Cache is allocated. #tokens: 147456, K size: 10.10 GB, V size: 10.10 GB\n"
        "[t] Capture DDTREE cuda graphs end. Time elapsed: 9.00 s. mem usage=0.70 GB. avail mem=90.00 GB. graphs=9.\n"
        "[t] The server is fired up\n"
    )
    found = memory.OWN_ACCOUNT.findall(log)
    assert [line.split()[0] for line in found] == ["Load", "KV", "Capture"]
    assert "mem usage=0.70 GB" in found[2]
