"""A report as SARIF 2.1.0, which code hosts show beside the lines of a build (OASIS standard, 2020)."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping
from urllib.parse import quote

from ddtree_deploy.abi.explain import EXPLANATIONS

_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def sarif(report: Mapping[str, Any], version: str) -> Dict[str, Any]:
    """The SARIF document of an ``abi.audit`` result; ``version`` is ours. Files are relative to the environment."""
    findings = report["findings"]
    ids = sorted({finding["id"] for finding in findings})
    return {
        "$schema": _SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "ddtree-deploy abi",
                        "semanticVersion": version,
                        "rules": [_rule(id) for id in ids],
                    }
                },
                "originalUriBaseIds": {"ENVIRONMENT": {"uri": _folder_uri(report["path"])}},
                "results": [_result(finding, ids.index(finding["id"])) for finding in findings],
            }
        ],
    }


def _rule(id: str) -> Dict[str, Any]:
    explanation = EXPLANATIONS[id]
    return {
        "id": id,
        "shortDescription": {"text": explanation.title},
        "fullDescription": {"text": explanation.text},
        "help": {"text": f"{explanation.text}\n\nWhat one sees: {explanation.example}"},
    }


def _result(finding: Mapping[str, Any], index: int) -> Dict[str, Any]:
    files: List[str] = finding["files"] or ["pyvenv.cfg"]  # results without a place are not shown
    return {
        "ruleId": finding["id"],
        "ruleIndex": index,
        "level": finding["severity"],
        "message": {"text": f"{finding['title']}. {finding['message']}. Fix: {finding['fix']}"},
        "locations": [{"physicalLocation": {"artifactLocation": _location(path)}} for path in files[:10]],
        "partialFingerprints": {"cause/v1": f"{finding['id']}:{finding['cause']}"},
        "properties": {
            "when": finding["when"],
            "why": finding["why"],
            "packages": finding["packages"],
            "symbols": finding["symbols"],
        },
    }


def _location(path: str) -> Dict[str, str]:
    if path.startswith("/"):
        return {"uri": _uri(path)}
    return {"uri": _quote(path), "uriBaseId": "ENVIRONMENT"}


def _folder_uri(path: str) -> str:
    return _uri(path.rstrip("/") + "/")


def _uri(path: str) -> str:
    return "file://" + _quote(path)


def _quote(path: str) -> str:
    return quote(path)
