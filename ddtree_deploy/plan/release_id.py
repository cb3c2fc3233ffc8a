"""The identity of a release: the same inputs give the same id, so that a second ``provision`` finds its work done."""

from __future__ import annotations

import hashlib
import json

from ddtree_deploy.codec import to_dict
from ddtree_deploy.plan.inputs import PlanInputs

# Raise it when the meaning of a release changes, so that releases of an older meaning are built anew.
RELEASE_SCHEMA = 1


def inputs_digest(inputs: PlanInputs) -> str:
    """Hex sha256 over everything that decides what a release holds.

    The source's kind counts, its address does not: every package is pinned by its hash, so a mirror gives the same
    release. A donor's packages are pinned by name and version only, so the donor's own fingerprint counts too.
    """
    base = inputs.facts.base
    donor = inputs.donor.base if inputs.donor is not None and inputs.source.kind == "donor" else None
    parts = {
        "schema": RELEASE_SCHEMA,
        "base": base.fingerprint if base is not None else None,
        "profile": inputs.profile.digest,
        "patch_set": inputs.patch_set.digest if inputs.patch_set is not None else None,
        "source": inputs.source.kind,
        "donor": donor.fingerprint if donor is not None else None,
        "playbook": to_dict(inputs.playbook),
    }
    if inputs.source.rest is not None:
        parts["rest"] = inputs.source.rest.kind
    return hashlib.sha256(json.dumps(parts, sort_keys=True, ensure_ascii=True).encode("ascii")).hexdigest()


def release_id(profile: str, digest: str) -> str:
    """``<profile>-<first 12 hex digits>``: a folder's name that says what is inside."""
    return f"{profile}-{digest[:12]}"
