"""``--from`` and ``--source`` over what the inventory says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from planning import inputs_of

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.load import Inventory, load_inventory
from ddtree_deploy.inventory.settings import split_donor, split_login
from ddtree_deploy.plan.gather import Choices, prepare, prepare_offline
from ddtree_deploy.plan.source_choice import choose_source, donor_host
from ddtree_deploy.profiles.model import Source

INVENTORY = """\
defaults: {connection: local, root: /srv/ddtree, base: /srv/venv}
hosts:
  plain: {}
  indexed: {source: {index: "https://index.example/simple"}}
  housed: {source: {wheelhouse: /wheels}}
  given: {source: {donor: "other:/srv/donor", index: default, take_edited: true, compress: true}}
  other: {base: /srv/other}
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    path = tmp_path / "hosts.yaml"
    path.write_text(INVENTORY, "utf-8")
    return load_inventory(path)


def chosen(inventory: Inventory, host: str, source: str | None = None, donor: str | None = None) -> Source:
    return choose_source(inventory.host(host), source, donor, inventory)


def test_what_is_said_where(inventory: Inventory) -> None:
    index = Source("index", "https://index.example/simple")
    assert chosen(inventory, "plain") == Source("index")
    assert chosen(inventory, "plain", donor="other") == Source("donor", "/srv/other", "other")
    assert chosen(inventory, "plain", donor="/srv/x") == Source("donor", "/srv/x")
    assert chosen(inventory, "plain", "index", "other").rest == Source("index")
    assert chosen(inventory, "indexed", donor="other").rest == index  # the inventory's own is for the rest
    assert chosen(inventory, "housed", donor="other").rest == Source("wheelhouse", "/wheels")
    assert chosen(inventory, "indexed", "wheelhouse:/w", "other").rest == Source("wheelhouse", "/w")
    given = chosen(inventory, "given")
    assert given == Source("donor", "/srv/donor", "other", rest=Source("index"), take_edited=True, compress=True)
    assert chosen(inventory, "given", donor="/srv/x").rest == Source("index")
    assert chosen(inventory, "given", "index") == Source("index")
    assert chosen(inventory, "other", donor="other:/srv/x") == Source("donor", "/srv/x")  # the host itself


@pytest.mark.parametrize(
    ("host", "source", "donor", "id"),
    [
        ("plain", "donor:/x", "/y", "bad-source"),
        ("plain", None, "/srv/venv", "bad-source"),
        ("other", None, "other", "bad-source"),
        ("plain", None, "nobody", "unknown-host"),
        ("plain", None, "other:relative", "bad-path"),
        ("plain", None, "", "bad-path"),
        ("plain", None, "other:", "bad-path"),
        ("plain", None, ":/srv/donor", "bad-path"),
        ("plain", None, "ada@10.0.0.1:", "bad-path"),
        ("plain", None, "ada@10.0.0.1", "bad-path"),
        ("plain", None, "ada@10.0.0.1:99999:/x", "unknown-host"),
    ],
)
def test_what_is_refused(inventory: Inventory, host: str, source: str | None, donor: str, id: str) -> None:
    with pytest.raises(InputError) as caught:
        source_chosen = chosen(inventory, host, source, donor)
        donor_host(source_chosen, inventory.host(host), inventory)
    assert caught.value.id == id


@pytest.mark.parametrize(
    ("text", "host", "path", "login"),
    [
        ("/opt/venv", None, "/opt/venv", None),
        ("~/venv", None, "~/venv", None),
        ("gpu2", "gpu2", None, None),
        ("gpu2:", "gpu2", "", None),
        ("gpu2:/opt/a:b", "gpu2", "/opt/a:b", None),
        ("ada@gpu2:/opt/venv", "ada@gpu2", "/opt/venv", ("ada", "gpu2", None)),
        ("ada@10.0.0.1:2222:/opt/venv", "ada@10.0.0.1:2222", "/opt/venv", ("ada", "10.0.0.1", 2222)),
        ("ada@[::1]:2222:~/venv", "ada@[::1]:2222", "~/venv", ("ada", "::1", 2222)),
        ("ada@[fe80::1%eth0]:/v", "ada@[fe80::1%eth0]", "/v", ("ada", "fe80::1%eth0", None)),
        ("gpu2:/opt/user@home", "gpu2", "/opt/user@home", None),
    ],
)
def test_how_donors_are_written(text: str, host: str | None, path: str | None, login: object) -> None:
    assert split_donor(text) == (host, path)
    assert (split_login(host) if host else None) == login


def test_a_login_is_a_host_of_its_own(inventory: Inventory) -> None:
    source = chosen(inventory, "plain", donor="ada@10.0.0.1:2222:/opt/venv")
    host = donor_host(source, inventory.host("plain"), inventory)
    assert (host.connection.kind, host.connection.user, host.connection.address) == ("ssh", "ada", "10.0.0.1")
    assert host.connection.port == 2222 and source.location == "/opt/venv"


def test_inventories_may_name_a_donor_by_login(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text('hosts:\n  a: {base: /b, source: {donor: "ada@10.0.0.1:/v"}}\n', "utf-8")
    assert load_inventory(path).host("a").plan_source().host == "ada@10.0.0.1"
    path.write_text('hosts:\n  a: {base: /b, source: {donor: "ada@10.0.0.1"}}\n', "utf-8")
    with pytest.raises(InputError, match="which venv"):
        load_inventory(path)


class TestProfiles:
    def test_without_a_profile_the_donor_is_one(self, inventory: Inventory) -> None:
        prepared = prepare(inventory.host("plain"), Choices(donor="other"), inventory=inventory)
        assert prepared.profile.name == "donor" and prepared.uv is None
        assert [found.distribution for found in prepared.patch_sets] == ["sglang"]
        assert "sglang/srt/server_args.py" in prepared.facts_params()["patch_files"]

    def test_a_named_profile_goes_first(self, inventory: Inventory) -> None:
        choices = Choices(profile="sglang-0.5.11-cpu", donor="other", source="index")
        prepared = prepare(inventory.host("plain"), choices, inventory=inventory)
        assert prepared.profile.name == "sglang-0.5.11-cpu" and prepared.uv is not None

    def test_a_donor_profile_without_donor(self, inventory: Inventory) -> None:
        with pytest.raises(InputError) as caught:
            prepare(inventory.host("plain"), Choices(profile="donor"), inventory=inventory)
        assert caught.value.id == "donor-not-named"
        with pytest.raises(InputError) as caught:
            prepare(inventory.host("plain"), Choices(), inventory=inventory)
        assert caught.value.id == "not-set" and "--from" in (caught.value.hint or "")

    def test_saved_facts_name_the_donor(self, inventory: Inventory) -> None:
        facts = inputs_of().facts
        assert facts.base is not None
        donor = replace(facts, hostname="gpu9", base=replace(facts.base, path="/opt/donor"))
        host = inventory.host("plain")
        prepared = prepare_offline(host, Choices(), facts, donor, inventory)
        assert prepared.source == Source("donor", "/opt/donor", "gpu9")
        same = prepare_offline(host, Choices(), facts, replace(donor, hostname=facts.hostname), inventory)
        assert same.source == Source("donor", "/opt/donor")
        mixed = prepare_offline(host, Choices(source="index"), facts, donor, inventory)
        assert mixed.source.rest == Source("index")
        edited = prepare_offline(host, Choices(take_edited=True), facts, donor, inventory)
        assert edited.source == Source("donor", "/opt/donor", "gpu9", take_edited=True)
        with pytest.raises(InputError) as caught:
            prepare_offline(host, Choices(donor="other"), facts, donor, inventory)
        assert caught.value.id == "facts-of-another-donor"
        with pytest.raises(InputError) as caught:
            prepare_offline(host, Choices(donor="other"), facts, None, inventory)
        assert caught.value.id == "facts-without-donor"
