"""Shared objects that are none: truncated, emptied, pointers left by Git LFS, or made for another machine."""

from __future__ import annotations

import re
from typing import List

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import severity

_WORDS = {
    "truncated": "is cut off",
    "corrupt": "is damaged",
    "empty": "is empty",
    "not-elf": "is not a shared object",
    "unreadable": "cannot be read",
    "special": "is no regular file",
}


def check(context: Context) -> List[Finding]:
    findings = []
    for path in context.candidates:
        problem = context.store.problems.get(path)
        info = context.store.info(path)
        if problem is not None and problem.kind == "linker-script":
            continue  # a development file: only the compiler's linker reads it
        if problem is not None and problem.kind == "other-class":
            findings += _wrong_machine(context, path, problem.message)
        elif problem is not None:
            findings.append(_broken(context, path, problem.kind, problem.message))
        elif info is not None and info.machine != context.host.machine:
            findings += _wrong_machine(context, path, f"file for {info.machine}")
    tree = context.environment.tree
    findings += [_dangling(context, path) for path in tree.broken if re.search(r"\.so(\.\d+)*$", path)]
    for path in tree.special:
        if re.search(r"\.so(\.\d+)*$", path):
            detail = "a pipe, socket or device, which the audit does not open"
            findings.append(_broken(context, path, "special", detail))
    return findings


def _broken(context: Context, path: str, kind: str, detail: str) -> Finding:
    shipped = kind in ("not-elf", "empty") and _as_shipped(context, path)
    level = "note" if shipped else _level(context, path)
    why = "the linker refuses it ('file too short', 'invalid ELF header') when the module is imported"
    return _finding(context, path, level, _WORDS.get(kind, "cannot be used"), f": {detail}", why)


def _finding(context: Context, path: str, level: str, what: str, detail: str, why: str) -> Finding:
    """``what`` and ``detail`` follow the file's name and path."""
    environment = context.environment
    package, short = environment.package(path), environment.short(path)
    return Finding(
        id="broken-shared-object",
        severity=level,
        title=f"{short.rpartition('/')[2]} {what}",
        message=f"{short}{detail}",
        when="import",
        cause=f"files:{package}",
        why=why,
        fix=f"pip install --force-reinstall --no-deps {package.split()[0]}",
        files=[short],
        packages=[package],
    )


def _as_shipped(context: Context, path: str) -> bool:
    """Whether the wheel itself held such a file: test data of build tools, for example."""
    entry = context.store.entry(path)
    claims = context.environment.owners.get(path, [])
    return entry is not None and any(recorded.size == entry.size for _, recorded in claims)


def _level(context: Context, path: str) -> str:
    """A library that others pull in is as important as they are."""
    name = path.rpartition("/")[2]
    users = [user for user in context.objects if name in context.store.info(user).needed]  # type: ignore[union-attr]
    found = severity.of_files(context, [path, *users])
    return "warning" if found == "note" else found


def _wrong_machine(context: Context, path: str, detail: str) -> List[Finding]:
    environment = context.environment
    level = severity.of_files(context, [path])
    stem = path.rpartition("/")[2].split(".")[0]
    others = [p for p in context.objects if p != path and p.rpartition("/")[2].split(".")[0] == stem]
    fits = [p for p in others if context.store.info(p).machine == context.host.machine]  # type: ignore[union-attr]
    if fits or level == "note":
        return []  # the package ships builds for several machines
    package = environment.package(path)
    return [
        Finding(
            id="wrong-machine",
            severity=level,
            title=f"{package} is built for another machine",
            message=f"{environment.short(path)} is a {detail}, the host is {context.host.machine}",
            when="import",
            cause=f"machine:{package}",
            why="the linker passes over files of another machine or class; the import system finds no module",
            fix=f"pip install --force-reinstall --no-deps {package.split()[0]} on the host itself",
            files=[environment.short(path)],
            packages=[package],
        )
    ]


def _dangling(context: Context, path: str) -> Finding:
    level = severity.of_files(context, [path])
    detail = " is a symbolic link whose target does not exist"
    why = "a link into a package cache or another environment that was cleaned or moved"
    return _finding(context, path, level, "leads nowhere", detail, why)
