"""A small released engine and an edited one, laid out as installed trees."""

import hashlib
from pathlib import Path

from ddtree_deploy.release.files import record_hash

RELEASED = {
    "sglang/__init__.py": b"",
    "sglang/crlf.py": b"first\r\nsecond\r\nthird\r\n",
    "sglang/no_newline.py": b"one = 1\ntwo = 2",
    "sglang/srt/__init__.py": b"",
    "sglang/srt/speculative/spec_info.py": b"".join(b"line%d = %d\n" % (i, i) for i in range(60)),
    "sglang/srt/untouched.py": b"value = 1\n",
    "sglang/srt/odd,name.json": b"{}\n",
}
EDITS = {
    "sglang/crlf.py": b"first\r\n2nd\r\nthird\r\n",
    "sglang/no_newline.py": b"one = 1\ntwo = 3",
    "sglang/srt/speculative/spec_info.py": RELEASED["sglang/srt/speculative/spec_info.py"]
    .replace(b"line10 = 10\n", b"line10 = 'ten'\n")
    .replace(b"line50 = 50\n", b"line50 = 50\nDDTREE = True\n"),
}
NEW = {"sglang/srt/speculative/ddtree/utils.py": b"# new\nB = 1\n"}


def install(site: Path, files: dict[str, bytes], version: str = "0.5.11", end: str = "\n") -> Path:
    """Lay ``files`` out as an installed wheel with METADATA and RECORD; returns ``site``."""
    info = f"sglang-{version}.dist-info"
    everything = dict(files)
    everything[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n".encode()
    lines = []
    for path, content in everything.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_bytes(content)
        name = f'"{path}"' if "," in path else path
        lines.append(f"{name},{record_hash(content)},{len(content)}")
    lines += [f"{info}/RECORD,,", "../../../bin/sglang,sha256=abc,3"]
    (site / info / "RECORD").write_text(end.join(lines) + end, newline="")
    return site


def snapshot(root: Path) -> dict[str, tuple[str, int]]:
    """Content hash and mode of every file below ``root``."""
    return {
        path.relative_to(root).as_posix(): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mode)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
