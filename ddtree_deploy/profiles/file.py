"""What a profile's YAML file may say."""

from __future__ import annotations

import re
from typing import Annotated, Any, Optional

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, PlainValidator

from ddtree_deploy.inventory import arguments
from ddtree_deploy.inventory.models import NAME, VARIABLE, Text
from ddtree_deploy.inventory.validation import StrictModel, found, wrong

VERBATIM = frozenset(
    {"environment", "engine_arguments", "engine_version", "min_driver_cuda", "min_glibc", "requires_python", "mode"}
)
PLACEHOLDERS = ("{release}",)


def _name(value: str) -> str:
    if not NAME.fullmatch(value):
        raise wrong("bad-name", f"expected letters, digits and - _ ., found {found(value)}")
    return value


def _version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion:
        raise wrong("bad-version", f"expected a version such as 0.5.11, found {found(value)}") from None
    return value


def _specifiers(value: str) -> str:
    try:
        SpecifierSet(value)
    except InvalidSpecifier:
        raise wrong("bad-version", f"expected versions such as '>=3.11,<3.13', found {found(value)}") from None
    return value


def _tag(value: str) -> str:
    if not re.fullmatch(r"cpu|cu\d{3}", value):
        raise wrong("bad-abi-tag", f"expected cpu or a CUDA build such as cu130, found {found(value)}")
    return value


def _dotted(value: str) -> str:
    if not re.fullmatch(r"\d+\.\d+", value):
        raise wrong("bad-version", f"expected a version such as 13.0, found {found(value)}")
    return value


def _requirement(value: str) -> str:
    try:
        requirement = Requirement(value)
    except InvalidRequirement as error:
        raise wrong("bad-requirement", f"{value!r}: {str(error).splitlines()[0]}") from None
    if requirement.url:
        raise wrong("bad-requirement", f"{requirement.name}: expected versions, found a URL", "use an index")
    return value


def _abi(value: Any) -> Any:
    if not isinstance(value, dict):
        raise wrong("wrong-type", f"expected a mapping of package to CUDA build, found {found(value)}")
    for name, tag in value.items():
        if not isinstance(tag, str) or not re.fullmatch(r"cpu|cu\d{3}", tag):
            raise wrong("bad-abi-tag", f"expected cpu or a CUDA build such as cu130, found {found(tag)}", at=(name,))
    return {canonicalize_name(name): tag for name, tag in value.items()}


def _environment(value: Any) -> Any:
    if not isinstance(value, dict):
        raise wrong("wrong-type", f"expected a mapping of variable to text, found {found(value)}")
    result = {}
    for name, item in value.items():
        text = str(item).lower() if isinstance(item, bool) else item
        if not VARIABLE.fullmatch(name):
            raise wrong("bad-environment", "not the name of an environment variable", at=(name,))
        if not isinstance(text, str) or "\n" in text or "\0" in text:
            raise wrong("wrong-type", f"expected one line of text, found {found(item)}", 'write "" for empty', (name,))
        unknown = [part for part in re.findall(r"\{[^{}]*\}", text) if part not in PLACEHOLDERS]
        if unknown:
            raise wrong("bad-placeholder", f"unknown placeholder {unknown[0]}", "only {release} is known", (name,))
        result[name] = text
    return result


def _inside(value: str) -> str:
    """A path below a release; ``{site}`` stands for its site-packages folder."""
    parts = value.removeprefix("{site}/").split("/")
    if value.startswith(("/", "~")) or any(part in ("", ".", "..") for part in parts) or "{" in "".join(parts):
        raise wrong("bad-path", f"expected a path inside the release, found {found(value)}", "as in {site}/name.py")
    return value


def _mode(value: Any) -> int:
    if not isinstance(value, str) or not re.fullmatch(r"0?o?[0-7]{3}", value):
        raise wrong("bad-mode", f"expected an octal mode such as 644 or 755, found {found(value)}")
    return int(value[-3:], 8)


Version_ = Annotated[str, AfterValidator(_version)]
DottedVersion = Annotated[str, AfterValidator(_dotted)]
RequirementText = Annotated[str, AfterValidator(_requirement)]


class ExtraFileEntry(StrictModel):
    """A file, or a folder with all files in it, that the profile puts into a release."""

    path: Annotated[str, AfterValidator(_inside)]
    source: Text
    mode: Optional[Annotated[int, PlainValidator(_mode)]] = None


class ProfileFile(StrictModel):
    """The whole file. Either ``lock`` names a file, or it is null and ``requirements`` say what to lock."""

    name: Annotated[str, AfterValidator(_name)]
    description: Optional[Text] = None
    engine: Text
    engine_version: Version_
    abi_tag: Annotated[str, AfterValidator(_tag)]
    gpu: bool = True
    requires_python: Annotated[str, AfterValidator(_specifiers)]
    machine: Annotated[list[Text], Field(min_length=1)]
    patch_set: Optional[Text] = None
    min_driver_cuda: Optional[DottedVersion] = None
    min_glibc: Optional[DottedVersion] = None
    system_libraries: dict[Text, Text] = Field(default_factory=dict)
    needs_index: Optional[Text] = None
    lock: Optional[Text]
    requirements: list[RequirementText] = Field(default_factory=list)
    overrides: list[RequirementText] = Field(default_factory=list)
    constraints: Optional[Text] = None
    unconstrained: list[Text] = Field(default_factory=list)
    abi: Annotated[dict[str, str], PlainValidator(_abi)] = Field(default_factory=dict)
    extra_files: list[ExtraFileEntry] = Field(default_factory=list)
    environment: Annotated[dict[str, str], PlainValidator(_environment)] = Field(default_factory=dict)
    engine_arguments: Annotated[arguments.Flags, PlainValidator(arguments.parse)] = Field(default_factory=dict)
