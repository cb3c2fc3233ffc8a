"""Tells harmless output from trouble by the rules in ``noise.json``, each with its reason and source.

A rule: ``{"id", "pattern", "kind": "noise" | "warning", "reason", "source"}`` and, optionally, ``"lines": n`` (the
match and what follows it, n lines in all) and ``"when": {"<fact>_at_least" | "<fact>_below": "12.9"}``: the rule holds
only if that fact is known and so. Facts: ``torch_cuda`` (CUDA of the release's torch),
``gpus`` (number of GPUs that torch sees). The first rule that matches and
holds wins; a line that none matches is ``unknown``, shown and not judged.
"""

from __future__ import annotations

import json
import pkgutil
import re
from dataclasses import dataclass, field
from typing import Dict, List, Mapping, Optional

from ddtree_deploy import codec
from ddtree_deploy.errors import InputError
from ddtree_deploy.verify.model import OutputLine
from ddtree_deploy.versions import version_key


@dataclass(frozen=True)
class Rule:
    id: str
    pattern: str
    kind: str  # noise | warning
    reason: str
    source: str
    lines: int = 1
    when: Dict[str, str] = field(default_factory=dict)

    def holds(self, facts: Mapping[str, Optional[str]]) -> bool:
        return all(_holds(condition, limit, facts) for condition, limit in self.when.items())


def _holds(condition: str, limit: str, facts: Mapping[str, Optional[str]]) -> bool:
    fact, relation = re.fullmatch(r"(.+)_(at_least|below)", condition).groups()  # type: ignore[union-attr]
    value = facts.get(fact)
    return value is not None and (version_key(value) >= version_key(limit)) == (relation == "at_least")


def load_rules() -> List[Rule]:
    """The shipped rules; raises InputError ``bad-noise-rule``."""
    data = pkgutil.get_data("ddtree_deploy.verify", "noise.json")
    assert data is not None
    rules = [codec.from_dict(Rule, item, f"noise.json[{number}]") for number, item in enumerate(json.loads(data))]
    for rule in rules:
        if rule.kind not in ("noise", "warning") or any(
            not name.endswith(("_at_least", "_below")) for name in rule.when
        ):
            raise InputError("bad-noise-rule", f"rule {rule.id} has an unknown kind or condition", where="noise.json")
    return rules


def classify(lines: List[str], facts: Mapping[str, Optional[str]], rules: List[Rule]) -> List[OutputLine]:
    """Every line with its kind and, where a rule decided, why."""
    result: List[OutputLine] = []
    following: Optional[Rule] = None
    left = 0
    for line in lines:
        rule = next((rule for rule in rules if re.search(rule.pattern, line) and rule.holds(facts)), None)
        if rule is not None:
            following, left = rule, rule.lines
        elif left <= 0:
            following = None
        left -= 1
        if following is None:
            result.append(OutputLine(line, "unknown"))
        else:
            result.append(OutputLine(line, following.kind, following.reason, following.id))
    return result
