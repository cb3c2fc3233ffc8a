"""Finds the parts of a Python environment: interpreter, site folders, distributions, torch. Reads files only."""

from __future__ import annotations

import os
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from ddtree_deploy.abi.cuda import abi_tag, tag_for_cuda
from ddtree_deploy.abi.metadata import Distribution, Recorded, owners, read_distributions
from ddtree_deploy.abi.tree import Tree, scan
from ddtree_deploy.errors import InputError

_VERSIONED = re.compile(r"/python(\d+)\.(\d+)$")


@dataclass
class Environment:
    """``site`` folders in the order of sys.path; ``system_site`` are those of the base Python, if it is let in."""

    prefix: str
    site: List[str]
    python: Optional[Tuple[int, int]]
    tree: Tree
    distributions: List[Distribution] = field(default_factory=list)
    import_roots: List[str] = field(default_factory=list)  # site folders and what .pth files add
    interpreter: Optional[str] = None  # the real executable
    dangling_interpreter: Optional[str] = None  # bin/python, where it leads nowhere
    stdlib: Optional[str] = None
    system_site: List[str] = field(default_factory=list)
    owners: Dict[str, List[Tuple[Distribution, Recorded]]] = field(default_factory=dict)
    torch_version: Optional[str] = None  # of torch/version.py
    torch_cuda: Optional[str] = None
    torch_site: Optional[str] = None

    @property
    def python_text(self) -> Optional[str]:
        return f"{self.python[0]}.{self.python[1]}" if self.python else None

    @property
    def abi_tag(self) -> Optional[str]:
        """cu130 | cu128 | cpu of the torch in here, None without torch."""
        if self.torch_version is None:
            return None
        return tag_for_cuda(self.torch_cuda) or abi_tag(self.torch_version) or "cpu"

    def distribution(self, name: str) -> Optional[Distribution]:
        """The distribution of this normalized name, or None."""
        return next((dist for dist in self.distributions if dist.name == name), None)

    def owner(self, path: str) -> Optional[Distribution]:
        """The distribution whose RECORD claims ``path``."""
        claims = self.owners.get(path)
        return claims[0][0] if claims else None

    def package(self, path: str) -> str:
        """A name for whoever put ``path`` here, for messages: "torch 2.11.0" or the top folder's name."""
        dist = self.owner(path)
        if dist:
            return dist.label
        return self.short(path).split("site-packages/")[-1].split("/")[0]

    def short(self, path: str) -> str:
        """``path`` relative to the environment."""
        return path[len(self.prefix) + 1 :] if path.startswith(self.prefix + "/") else path

    def text(self, path: str) -> Optional[str]:
        """Content of a text file of the tree, None where it is missing."""
        entry = self.tree.find(path)
        if entry is None:
            return None
        try:
            return Path(entry.real).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None


def load_environment(path: str) -> Environment:
    """The environment at ``path``: a venv, any Python prefix, or a site-packages folder.

    Raises InputError ``no-environment`` where nothing like that is there.
    """
    where = str(Path(path).expanduser().absolute())
    if not Path(where).is_dir():
        problem = "is not a folder" if Path(where).exists() else "does not exist"
        raise InputError("no-environment", f"{where} {problem}", where=where, hint="give a venv, for example /opt/venv")
    prefix, sites = _locate(where)
    if not sites:
        raise InputError(
            "no-environment",
            f"{where} holds no Python environment: no lib/python3.*/site-packages and no *.dist-info",
            where=where,
            hint="give the folder that holds bin/python, or its site-packages",
        )
    config = _pyvenv(prefix)
    interpreter = _interpreter(prefix)
    python = _python_version(sites, config, interpreter)
    fitting = [site for site in sites if python is None or _site_python(site) in (None, python)]
    sites = fitting or sites
    tree = scan(sites, prefix)
    sites = [site for site in sites if site not in tree.aliases]
    environment = Environment(prefix=prefix, site=sites, python=python, tree=tree, interpreter=interpreter)
    environment.dangling_interpreter = _dangling(prefix)
    environment.stdlib = _stdlib(prefix, python, config, interpreter)
    if config.get("include-system-site-packages", "").lower() == "true":
        environment.system_site = _system_sites(python, config, interpreter)
    return complete(environment)


def is_environment(path: str) -> bool:
    """Whether :func:`load_environment` would find one at ``path``."""
    where = Path(path).expanduser().absolute()
    return where.is_dir() and bool(_locate(str(where))[1])


def complete(environment: Environment) -> Environment:
    """Fills in what follows from the tree: distributions, owners, import roots, torch."""
    tree = environment.tree
    if environment.system_site:
        extra = scan([path for path in environment.system_site if path not in tree.roots])
        extra.broken += tree.broken
        extra.special += tree.special
        extra.outside.update(tree.outside)
        extra.aliases.update(tree.aliases)
        tree = environment.tree = extra.overlay(tree.files)
        tree.roots = [*environment.site, *environment.system_site]
    real_sites = [*environment.site, *environment.system_site]
    environment.distributions = []
    for site in real_sites:
        known = {dist.name for dist in environment.distributions} if site in environment.system_site else set()
        environment.distributions += [dist for dist in read_distributions(tree, site) if dist.name not in known]
    environment.owners = owners(environment.distributions)
    environment.import_roots = [*real_sites, *_pth_roots(environment, real_sites)]
    for site in real_sites:
        text = environment.text(f"{site}/torch/version.py")
        if text is not None and environment.torch_site is None:
            environment.torch_site = site
            environment.torch_version = assigned(text, "__version__")
            environment.torch_cuda = assigned(text, "cuda")
    return environment


def assigned(text: str, name: str) -> Optional[str]:
    """The string that a module-level ``name = '...'`` (annotated or not) assigns, else None."""
    match = re.search(rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return match.group(1) if match else None


def _locate(where: str) -> Tuple[str, List[str]]:
    """(prefix, site folders) of a prefix or of a site-packages folder given itself."""
    found = []
    for lib in ("lib", "lib64"):
        for kind in ("site-packages", "dist-packages"):
            found += sorted(str(path) for path in Path(where).glob(f"{lib}/python3*/{kind}"))
    if found:
        return where, found
    parent = str(Path(where).parent)
    if _VERSIONED.search(parent) and Path(where).name in ("site-packages", "dist-packages"):
        return str(Path(where).parents[2]), [where]
    if any(Path(where).glob("*.dist-info")) or any(Path(where).glob("*.egg-info")):
        return where, [where]
    return where, []


def _pyvenv(prefix: str) -> Dict[str, str]:
    if not Path(prefix, "pyvenv.cfg").is_file():
        return {}
    try:
        lines = Path(prefix, "pyvenv.cfg").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = [line.partition("=") for line in lines]
    return {key.strip().lower(): value.strip() for key, equals, value in pairs if equals}


def _python_version(sites: List[str], config: Dict[str, str], interpreter: Optional[str]) -> Optional[Tuple[int, int]]:
    """By pyvenv.cfg, the interpreter's name, the site folder: in this order, since a prefix may hold several."""
    match = re.match(r"(\d+)\.(\d+)", config.get("version_info") or config.get("version") or "")
    match = match or re.search(r"python(\d+)\.(\d+)$", interpreter or "")
    if match is None:
        return next((python for python in map(_site_python, sites) if python), None)
    return int(match.group(1)), int(match.group(2))


def _site_python(site: str) -> Optional[Tuple[int, int]]:
    match = _VERSIONED.search(str(Path(site).parent))
    return (int(match.group(1)), int(match.group(2))) if match else None


def _interpreter(prefix: str) -> Optional[str]:
    for name in ("python", "python3"):
        path = os.path.realpath(f"{prefix}/bin/{name}")
        if Path(path).is_file():
            return path
    return None


def _dangling(prefix: str) -> Optional[str]:
    path = Path(prefix, "bin/python")
    return str(path) if path.is_symlink() and not path.exists() else None


def _stdlib(
    prefix: str, python: Optional[Tuple[int, int]], config: Dict[str, str], interpreter: Optional[str]
) -> Optional[str]:
    if python is None:
        return None
    homes = [prefix]
    if config.get("home"):
        homes.append(str(Path(config["home"]).parent))
    if interpreter:
        homes.append(str(Path(interpreter).parent.parent))
    for home in homes:
        folder = f"{home}/lib/python{python[0]}.{python[1]}"
        if Path(folder, "os.py").is_file():
            return folder
    return None


def _system_sites(python: Optional[Tuple[int, int]], config: Dict[str, str], interpreter: Optional[str]) -> List[str]:
    homes = [str(Path(config["home"]).parent)] if config.get("home") else []
    if interpreter:
        homes.append(str(Path(interpreter).parent.parent))
    version = f"python{python[0]}.{python[1]}" if python else "python3"
    candidates = []
    for home in homes:
        if home == "/usr":
            candidates += [f"/usr/local/lib/{version}/dist-packages", "/usr/lib/python3/dist-packages"]
        candidates.append(f"{home}/lib/{version}/site-packages")
    found = []
    for path in candidates:
        if Path(path).is_dir() and path not in found:
            found.append(path)
    return found


def _pth_roots(environment: Environment, sites: List[str]) -> List[str]:
    """Folders that ``*.pth`` files put on sys.path (site.py: lines that do not begin with ``import``)."""
    roots: List[str] = []
    for site in sites:
        start = len(site) + 1
        names = [path for path in environment.tree.files if path.endswith(".pth") and "/" not in path[start:]]
        for path in sorted(name for name in names if name.startswith(site + "/")):
            for line in (environment.text(path) or "").splitlines():
                line = line.strip()
                if not line or line.startswith(("#", "import ", "import\t")):
                    continue
                folder = posixpath.normpath(f"{site}/{line}" if not line.startswith("/") else line)
                if folder not in roots and folder not in sites:
                    roots.append(folder)
    return roots
