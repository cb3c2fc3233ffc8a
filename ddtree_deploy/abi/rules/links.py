"""Links to folders outside of the environment, which the audit does not follow."""

from __future__ import annotations

from typing import List

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding


def check(context: Context) -> List[Finding]:
    environment = context.environment
    return [
        Finding(
            id="link-outside",
            severity="note",
            title=f"{link.rpartition('/')[2]} leads out of the environment",
            message=f"{environment.short(link)} leads to {target}, which was not looked at",
            when="import",
            cause=f"link:{link}",
            why="the folder is no installed package; what it holds can change without the environment",
            fix="audit the environment that it belongs to, or remove the link",
            files=[environment.short(link)],
        )
        for link, target in sorted(environment.tree.outside.items())
    ]
