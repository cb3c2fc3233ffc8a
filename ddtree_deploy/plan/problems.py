"""What stands in the way of a plan, told from the facts alone. Every problem says what, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts, Venv
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.plan.inputs import PlanInputs, PlanSettings, parse_budget
from ddtree_deploy.plan.model import Problem
from ddtree_deploy.profiles.model import Profile
from ddtree_deploy.units import some
from ddtree_deploy.versions import same_version


def error(id: str, message: str, hint: str | None = None) -> Problem:
    return Problem("error", id, message, hint)


def host_problems(inputs: PlanInputs) -> list[Problem]:
    """All problems of the host and its settings; those of sources, packages and disk space have their own modules."""
    facts, settings, profile = inputs.facts, inputs.settings, inputs.profile
    return [
        *_platform(facts, profile),
        *_base(facts, settings, profile),
        *_root(facts, settings),
        *_gpus(facts, settings, profile),
        *_budget(settings),
        *_patch_set(inputs),
    ]


def usable_base(facts: HostFacts) -> Venv | None:
    """The base venv when it can be planned with."""
    base = facts.base
    if base is None or not base.exists or base.problem or not base.python:
        return None
    return base


def _platform(facts: HostFacts, profile: Profile) -> list[Problem]:
    problems = []
    if facts.system != "Linux":
        problems.append(error("host-unsupported", f"{facts.hostname} runs {facts.system}; only Linux is supported"))
    if profile.machine and facts.machine not in profile.machine:
        wanted = ", ".join(profile.machine)
        message = f"{facts.hostname} is a {facts.machine} machine; profile {profile.name} has packages for {wanted}"
        problems.append(error("machine-unsupported", message, "Choose a profile for this machine, or another host."))
    if profile.min_glibc and facts.system == "Linux":
        if facts.glibc is None:
            message = f"{facts.hostname} has no glibc (musl?); profile {profile.name} needs glibc {profile.min_glibc}"
            problems.append(error("glibc-missing", message, "Use a distribution with glibc, such as Debian or Ubuntu."))
        elif _older(facts.glibc, profile.min_glibc):
            message = f"glibc is {facts.glibc}; profile {profile.name} needs {profile.min_glibc} or newer"
            problems.append(error("glibc-too-old", message, "Upgrade the host's distribution, or use a container."))
    known = facts.libraries
    missing = {} if known is None else {k: v for k, v in profile.system_libraries.items() if k not in known}
    if missing:
        message = f"{facts.hostname} has no {', '.join(sorted(missing))}, which packages of {profile.name} link to"
        hint = f"Install it on the host: apt-get install {' '.join(sorted(set(missing.values())))}"
        problems.append(error("system-library-missing", message, hint))
    return problems


def _base(facts: HostFacts, settings: PlanSettings, profile: Profile) -> list[Problem]:
    base = facts.base
    if base is None or not base.exists:
        hint = f"Make one (python3 -m venv {settings.base}), or set `base` of this host to the environment you have."
        return [error("base-missing", f"there is no base venv at {settings.base}", hint)]
    if base.problem or not base.python:
        message = f"{base.path} is not a venv that can be cloned: {base.problem or 'its Python is unknown'}"
        return [error("base-not-a-venv", message, "Set `base` to the folder that holds pyvenv.cfg and bin/python.")]
    if not SpecifierSet(profile.requires_python).contains(base.python, prereleases=True):
        message = f"the base venv {base.path} has Python {base.python}; profile {profile.name} needs Python "
        hint = "Make a base venv with a Python of that range, or choose another profile."
        return [error("base-python", message + profile.requires_python, hint)]
    if base.system_site_packages:
        message = f"{base.path} also sees the system's packages: the release will, and nothing pins them"
        hint = "What the profile locks goes before them. A base venv without --system-site-packages has no such doubts."
        return [Problem("warning", "system-site-packages", message, hint)]
    return []


def _root(facts: HostFacts, settings: PlanSettings) -> list[Problem]:
    found = facts.base.path if facts.base is not None and facts.base.exists else settings.base
    root, base = PurePosixPath(facts.root or settings.root), PurePosixPath(found)
    problems = []
    if base == root or root in base.parents:
        message = f"the base venv {base} is inside the root {root}, where our releases are"
        problems.append(error("base-inside-root", message, "A base venv is one that existed before; set `base` to it."))
    elif base in root.parents:
        message = f"the root {root} is inside the base venv {base}, which is never modified"
        problems.append(error("root-inside-base", message, "Set `root` to a folder outside of it."))
    if facts.root_blocked_by:
        message = f"the root {root} cannot be a folder: {facts.root_blocked_by} is none"
        problems.append(error("root-not-a-folder", message, "Move that away, or set another `root`."))
    elif not facts.root_writable:
        message = f"user {facts.user} cannot write {root}"
        hint = f"Make it writable (install -d -o {facts.user} {root}), connect as another user, or set another `root`."
        problems.append(error("root-not-writable", message, hint))
    if not facts.current_is_link:
        message = f"{root}/current is no symlink, so it was not made by us, and cannot be switched to a release"
        hint = "Look at it, then move it away, or set another `root`."
        problems.append(error("current-not-a-link", message, hint))
    if facts.locked_by:
        message = f"another run holds the lock of {root}: {facts.locked_by}"
        problems.append(Problem("warning", "locked", message, "Wait for it to end before provisioning."))
    for name in facts.partial:
        message = f"{name} was left by an interrupted run; the next provision finishes or removes it"
        problems.append(Problem("note", "partial-release", message))
    return problems


def services_that_stay(inputs: PlanInputs, release_id: str) -> list[Problem]:
    """A note on services that go on with another release than ``release_id`` once it is current."""
    names = [service.name for service in inputs.facts.services if service.stays_elsewhere(release_id)]
    if not names or all(step.step != "activate" for step in inputs.playbook.steps):
        return []
    stay = "runs" if len(names) == 1 else "run"
    message = f"{some(names)} {stay} from another release, and will go on with it"
    hint = f"Once this one is current: ddtree-deploy launch {inputs.settings.host} --replace."
    return [Problem("note", "services-stay", message, hint)]


def _gpus(facts: HostFacts, settings: PlanSettings, profile: Profile) -> list[Problem]:
    problems = []
    known = sorted(gpu.index for gpu in facts.gpus)
    missing = [index for index in settings.gpus or [] if index not in known]
    if missing:
        have = f"the host has GPU {', '.join(map(str, known))}" if known else "the host has no GPU"
        message = f"GPU {', '.join(map(str, missing))} does not exist: {have}"
        problems.append(error("gpu-not-found", message, "Correct `gpus` of this host in the inventory."))
    if not profile.gpu:
        return problems
    if not facts.gpus:
        why = f" ({facts.gpu_problem})" if facts.gpu_problem else ""
        message = f"profile {profile.name} is for GPUs, and {facts.hostname} has none{why}"
        if settings.gpus == []:  # said on purpose: an image built where no GPU is
            problems.append(
                Problem("warning", "no-gpu", message, "Prepared without one (--without-gpu); launch needs it.")
            )
        elif not missing:
            hint = "Choose a CPU profile, repair the driver, or prepare the release without a GPU: --without-gpu."
            problems.append(error("no-gpu", message, hint))
    elif facts.driver_cuda is None:
        message = "the CUDA version that the driver supports is unknown"
        problems.append(Problem("warning", "driver-unknown", message, facts.gpu_problem))
    if profile.min_driver_cuda and facts.driver_cuda and _older(facts.driver_cuda, profile.min_driver_cuda):
        driver = f"driver {facts.driver}" if facts.driver else "the driver"
        message = (
            f"{driver} supports CUDA up to {facts.driver_cuda}; profile {profile.name} ({profile.abi_tag}) needs "
            f"CUDA {profile.min_driver_cuda}"
        )
        hint = f"Install a driver for CUDA {profile.min_driver_cuda} or newer, or use a profile for an older CUDA."
        problems.append(error("driver-too-old", message, hint))
    return problems + (_compilers(facts, {**profile.environment, **settings.environment}) if facts.gpus else [])


def _compilers(facts: HostFacts, environment: Mapping[str, str]) -> list[Problem]:
    """What a service lacks to compile kernels with when it first starts: warnings, since it can be installed later.

    ``environment`` is the profile's and the host's own. What it names is not looked for; ``verify`` tries it.
    """
    given = {name for name, value in environment.items() if value}  # an empty CUDA_HOME is none
    found = None if "PATH" in given else facts.compilers  # which is about the system's PATH
    problems = [] if {"CUDA_HOME", "CUDA_PATH", "PATH"} & given else _toolkit(facts, "LIBRARY_PATH" in given)
    host, first = facts.hostname, "when a service first starts, "
    if found is not None:
        gcc = PurePosixPath(found.c or "").name == "gcc"
        lacks = []
        if not found.c and "CC" not in given:
            lacks.append("no C compiler (gcc)")
        elif not gcc and "NVCC_CCBIN" not in given:
            lacks.append("no gcc (nvcc calls it)")
        if not found.cxx and "CXX" not in given:
            lacks.append("no C++ compiler (c++)")
        if lacks:
            message = f"{host} has {' and '.join(lacks)}: {first}kernels are compiled, or it ends"
            hint = "Install them on the host: apt-get install build-essential"
            problems.append(Problem("warning", "no-compiler", message, hint))
    base = facts.base
    if facts.compilers is not None and facts.compilers.python_header is False and base is not None and base.python:
        python = ".".join(base.python.split(".")[:2])
        message = f"{host} has no Python.h of Python {python}: {first}Triton needs it, or it ends"
        hint = f"Install it on the host: apt-get install python{python}-dev"
        if base.base_prefix not in (None, "/usr"):
            hint = f"Install the Python in {base.base_prefix} with its headers, or make the base venv with another one."
        problems.append(Problem("warning", "no-python-header", message, hint))
    return problems


def _toolkit(facts: HostFacts, links_elsewhere: bool) -> list[Problem]:
    found, host = facts.compilers, facts.hostname
    known = ", ".join(toolkit.path for toolkit in facts.toolkits)
    what = "when a service first starts, the engine compiles kernels with nvcc, or ends"
    if found is not None and found.nvcc is not None:
        if found.cuda_runtime is not False or links_elsewhere:
            return []
        folder = PurePosixPath(found.nvcc).parent.parent / "lib64"
        message = f"{host} has {found.nvcc}, and no libcudart.so in {folder}, to which kernels are linked: {what}"
        hint = "Install the whole toolkit, not nvcc alone, or set CUDA_HOME in the host's `environment` to one."
    elif not known:
        message = f"{host} has no CUDA toolkit: {what}"
        hint = "Install one with nvcc, or set CUDA_HOME in the host's `environment`."
    elif found is not None:
        message = f"{host} has no nvcc where a service looks for it (PATH, /usr/local/cuda): {what}"
        hint = "Set CUDA_HOME in the host's `environment` to a toolkit that has bin/nvcc."
    else:
        return []
    return [Problem("warning", "no-cuda-toolkit", message, hint + (f" The host has {known}." if known else ""))]


def _budget(settings: PlanSettings) -> list[Problem]:
    if settings.budget is not None:
        try:
            parse_budget(settings.budget)
        except InputError as wrong:
            return [error(wrong.id, wrong.message, wrong.hint)]
    return []


def _patch_set(inputs: PlanInputs) -> list[Problem]:
    profile, patch_set = inputs.profile, inputs.patch_set
    if not any(step.step == "patch" for step in inputs.playbook.steps):
        return []
    engine = f"{profile.engine} {profile.engine_version}"
    if patch_set is None:
        message = f"there is no patch set for {engine} (profile {profile.name})"
        hint = "Use a profile whose engine has one, or a playbook without the patch step."
        return [error("no-patch-set", message, hint)]
    if not patch_set_fits(patch_set, profile):
        message = f"patch set {patch_set.name} is for {patch_set.distribution} {patch_set.version}, the profile for "
        return [error("patch-set-version", message + engine, "A patch set fits one exact version of the engine.")]
    return []


def patch_set_fits(patch_set: PatchSet, profile: Profile) -> bool:
    """Whether the patch set is for the profile's engine, in its version: the same that ``patching.engine`` accepts."""
    same_engine = canonicalize_name(patch_set.distribution) == canonicalize_name(profile.engine)
    return same_engine and same_version(profile.engine_version, patch_set.version)


def _older(found: str, wanted: str) -> bool:
    """True when ``found`` is known to be lower than ``wanted``; unreadable versions are not called old."""
    try:
        return Version(found) < Version(wanted)
    except InvalidVersion:
        return False
