"""Where a host's packages come from: what the command line says over what the inventory says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.inventory.load import Inventory
from ddtree_deploy.inventory.models import SourceOptions
from ddtree_deploy.inventory.settings import BUILT_IN, Connection, HostSettings, split_donor, split_login
from ddtree_deploy.profiles.model import Source

FROM = "--from"


def choose_source(
    host: HostSettings,
    source: str | None,
    donor: str | None,
    inventory: Inventory | None = None,
    take_edited: bool = False,
) -> Source:
    """The source for ``host``: ``source`` and ``donor`` are what ``--source`` and ``--from`` say.

    A donor that is named comes before everything; what it lacks comes from ``--source``, or from the index or
    wheelhouse that the inventory names for the host. Raises InputError ``bad-source``, ``bad-path``, ``unknown-host``.
    """
    said = parse_source(source) if source else None
    chosen = said or host.plan_source()
    if donor is not None:
        if said is not None and said.kind == "donor":
            raise InputError("bad-source", "two donors, by --from and by --source", where=FROM, hint="Name one.")
        named = host.origin("source") != BUILT_IN
        rest = said or (chosen if named and chosen.kind != "donor" else chosen.rest)
        name, path = split_donor(donor)
        _check(donor, name, path)
        chosen = Source(kind="donor", location=path, host=name, rest=rest, compress=chosen.compress)
    if chosen.kind != "donor":
        return chosen
    return _placed(replace(chosen, take_edited=take_edited or chosen.take_edited), host, inventory)


def donor_host(source: Source, target: HostSettings, inventory: Inventory | None) -> HostSettings:
    """The host that the donor of ``source`` is on: of the inventory, named by a login, or ``target`` itself.

    Raises InputError ``unknown-host``.
    """
    if source.host is None:
        return target
    login = split_login(source.host)
    if login is not None:
        user, address, port = login
        connection = Connection(kind="ssh", address=address, user=user, port=port)
        return HostSettings(source.host, (), connection, target.folder)
    if inventory is None:
        message = f"donor host {source.host} needs an inventory"
        raise InputError("unknown-host", message, hint="Give --inventory, or USER@HOST:/PATH.")
    return inventory.host(source.host)


def donor_of_facts(facts: HostFacts, donor: HostFacts, rest: Source | None, take_edited: bool = False) -> Source:
    """The source that saved donor facts stand for, where the command line names none."""
    path = donor.base.path if donor.base is not None else None
    same = donor.hostname == facts.hostname and donor.boot_id == facts.boot_id
    host = None if same else donor.hostname
    return Source(kind="donor", location=path, host=host, rest=rest, take_edited=take_edited)


def donor_place(source: Source) -> str:
    """The donor in words: ``gpu2:/opt/venv``."""
    return f"{source.host}:{source.location}" if source.host else str(source.location)


def parse_source(text: str) -> Source:
    """``--source``: ``index``, ``index:URL``, ``wheelhouse:FOLDER``, ``donor:PATH`` or ``donor:HOST[:PATH]``."""
    if text == "index":
        return Source(kind="index")
    kind, _, place = text.partition(":")  # nothing after it is often a variable that is not set
    if kind == "index" and place:
        return Source(kind="index", location=_index_url(place))
    if kind == "wheelhouse" and place:
        return Source(kind="wheelhouse", location=str(Path(place).expanduser().absolute()))
    if kind == "donor" and place:
        host, path = split_donor(place)
        if _is_donor(host, path):
            return Source(kind="donor", location=path, host=host)
    raise InputError(
        "bad-source",
        f"{text!r} is not a source",
        where="--source",
        hint="index, index:URL, wheelhouse:FOLDER, donor:/PATH or donor:HOST:/PATH",
    )


def _is_donor(name: str | None, path: str | None) -> bool:
    return name != "" and (path is None or path.startswith(("/", "~/")))


def _check(text: str, name: str | None, path: str | None) -> None:
    if not _is_donor(name, path):
        hint = "HOST:/PATH, USER@ADDRESS[:PORT]:/PATH, HOST (its base venv), or /PATH on the host itself"
        raise InputError("bad-path", f"{text!r} is not a donor", where=FROM, hint=hint)


def _placed(source: Source, host: HostSettings, inventory: Inventory | None) -> Source:
    """With the path of the donor's venv, and without the host where that is the target itself."""
    name, path = source.host, source.location
    if name is not None and path is None:
        if split_login(name) is not None:
            raise InputError("bad-path", f"{name}: which venv there?", where=FROM, hint=f"{name}:/PATH")
        path = donor_host(source, host, inventory).require("base")
    name = None if name == host.name else name
    if name is None and path == host.base:
        hint = "Name another venv: --from /PATH, or another host's."
        raise InputError("bad-source", f"the donor {path} is the base venv itself", where=host.where, hint=hint)
    return replace(source, host=name, location=path)


def _index_url(text: str) -> str | None:
    """Under the inventory's rules: a URL without a password, or a reference to one; ``default`` is uv's own."""
    try:
        index = SourceOptions(index=text).index
    except ValidationError as error:
        context = error.errors()[0].get("ctx", {})
        hint = str(context.get("hint") or "") or None
        raise InputError("bad-source", str(context.get("message", error)), where="--source", hint=hint) from None
    return None if index == "default" else index
