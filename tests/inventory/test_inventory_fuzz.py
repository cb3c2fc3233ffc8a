"""Whatever is in a file, reading it gives values or an InputError with a place, never another exception."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.load import load_inventory
from ddtree_deploy.inventory.models import HostEntry
from ddtree_deploy.inventory.yaml_lines import parse_yaml
from ddtree_deploy.profiles.lock import parse_lock

KEYS = sorted({*HostEntry.model_fields, "kind", "address", "jump", "index", "donor", "value", "a", "--b", ""})
TEXTS = st.sampled_from(
    ["local", "env:X", "file:x", "/x", "all", "auto", "1-2", "0x1", "a:b", "::", "*", "\t", "é", ""]
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-2, 70000), st.floats(), TEXTS, st.text(max_size=8))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=4)), inner)
    ),
    max_leaves=8,
)
HOSTS = st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4)
few = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@few
@given(st.text(alphabet="ab:-*&!?|>[]{}#'\"%@`,\n\t ~<0.\\\x00é", max_size=60))
def test_any_text(text: str) -> None:
    try:
        parse_yaml(text, Path("f"), "inventory")
    except InputError as error:
        assert str(error.where).startswith("f")


@few
@given(whole=VALUES, defaults=HOSTS, host=HOSTS)
def test_any_values(whole: object, defaults: dict[str, object], host: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    for value in (whole, {"defaults": defaults, "groups": {"g": defaults}, "hosts": {"h": host}}):
        path.write_text(yaml.safe_dump(value, allow_unicode=True), "utf-8")
        try:
            inventory = load_inventory(path)
        except InputError as error:
            assert str(error.where).startswith(str(path))
        else:
            for name in inventory.hosts:
                assert inventory.describe(name)


@pytest.mark.filterwarnings("ignore:invalid escape sequence")  # packaging evaluates quoted marker values
@few
@given(st.text(alphabet="a=1.;><'\"[]@ -\\#\n:h\x00é*", max_size=60))
def test_any_lock(text: str) -> None:
    try:
        parse_lock(text, Path("f"))
    except InputError as error:
        assert str(error.where).startswith("f")
