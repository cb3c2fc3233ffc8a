"""What a service is to be, as kept in ``<root>/services/<name>/spec.json``; secrets are kept apart from it.

The folder of a service::

    spec.json     ServiceSpec, readable
    environment   secrets as JSON {NAME: value}, mode 0600
    engine.yaml   the API keys as the engine's --config file, mode 0600; only where there are any
    state.json    ServiceState, written by the supervisor
    log log.1 ..  output of the engine with the secrets masked, mode 0600
    lock          held by the living supervisor
"""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import json
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Type, TypeVar, Union

from ddtree_deploy import codec
from ddtree_deploy.errors import InputError

T = TypeVar("T")
ALGORITHMS = ("ddtree", "dflash", "none")
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
API_KEY = "DDTREE_API_KEY"
ADMIN_API_KEY = "DDTREE_ADMIN_API_KEY"

_PORTS = ["port", "nccl_port", "gpu_index", "schema"]
_FREE = [*_PORTS, "launch_timeout_s", "stop_grace_s", "max_restarts", "restart_window_s", "restart_delay_s"]


@dataclass(frozen=True)
class ServiceSpec:
    """Everything that decides how a service runs, except secret values. Times are in seconds."""

    name: str  # gpu0, cpu
    release: str  # absolute path: a later switch of `current` does not move a running service
    release_id: str
    model: str
    algorithm: str  # ddtree | dflash | none
    port: int
    nccl_port: int
    draft: Optional[str] = None
    budget: Optional[Union[int, str]] = None  # nodes, or auto
    gpu_index: Optional[int] = None  # at the time of launch, PCI bus order
    gpu_uuid: Optional[str] = None
    listen: str = "127.0.0.1"
    profile_arguments: List[str] = field(default_factory=list)
    engine_arguments: List[str] = field(default_factory=list)  # the user's, they win
    environment: Dict[str, str] = field(default_factory=dict)
    secret_names: List[str] = field(default_factory=list)
    launch_timeout_s: float = 900.0
    stop_grace_s: float = 15.0
    max_restarts: int = 5  # within restart_window_s; then the service has failed
    restart_window_s: float = 600.0
    restart_delay_s: float = 1.0  # before the first restart; doubles with each within the window, up to a minute
    schema: int = 1

    @property
    def api_key(self) -> bool:
        return API_KEY in self.secret_names

    @property
    def has_engine_config(self) -> bool:
        return self.api_key or ADMIN_API_KEY in self.secret_names

    def shares_device(self, other: ServiceSpec) -> bool:
        """True if the two cannot run side by side: the same GPU or the same name (``cpu``)."""
        return self.name == other.name or (self.gpu_uuid is not None and self.gpu_uuid == other.gpu_uuid)

    def differences(self, other: ServiceSpec) -> List[str]:
        """The fields in which two services would run differently; ports are ours to choose, so they do not count."""
        ours, theirs = codec.to_dict(self), codec.to_dict(other)
        return [key for key in ours if ours[key] != theirs[key] and key not in _FREE]

    def same_service(self, other: ServiceSpec) -> bool:
        return not self.differences(other)


@dataclass(frozen=True)
class ServiceFolder:
    """Paths of one service and safe reading and writing of what is in them."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def spec_file(self) -> Path:
        return self.path / "spec.json"

    @property
    def secrets_file(self) -> Path:
        return self.path / "environment"

    @property
    def engine_config(self) -> Path:
        return self.path / "engine.yaml"

    @property
    def state_file(self) -> Path:
        return self.path / "state.json"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @property
    def supervisor_log(self) -> Path:
        return self.path / "supervisor.log"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    def is_kept(self) -> bool:
        """Whether a supervisor lives."""
        handle = os.open(self.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(handle)
        return False

    def spec(self) -> Optional[ServiceSpec]:
        """None where nothing was ever launched; raises InputError ``bad-document``, ``copied-service``."""
        spec = self.read(self.spec_file, ServiceSpec)
        if spec is not None and spec.name != self.name:  # its state would be the other's, and so its processes
            raise InputError(
                "copied-service",
                f"this is a copy of service {spec.name}",
                where=str(self.path),
                hint=f"move it out of {self.path.parent}",
            )
        return spec

    def read(self, path: Path, kind: Type[T]) -> Optional[T]:
        """One of the folder's documents, None if it is not there; raises InputError ``bad-document``."""
        try:
            data = json.loads(path.read_text("utf-8"))
            return codec.from_dict(kind, data, str(path))
        except FileNotFoundError:
            return None
        except (ValueError, InputError) as error:
            raise self.damaged(path, str(error)) from error

    def damaged(self, path: Path, why: str) -> InputError:
        return InputError(
            "bad-document",
            f"not a document of this version: {why}",
            where=str(path),
            hint=f"stop the service with the version that launched it, or end its supervisor (`fuser {self.lock}` "
            f"names it if it lives); then remove {self.path}",
        )

    def secrets(self) -> Dict[str, str]:
        """Raises InputError ``bad-document``, which tells no value."""
        try:
            data: Any = json.loads(self.secrets_file.read_text("utf-8"))
            return {str(name): str(value) for name, value in data.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError) as error:
            raise InputError(
                "bad-document",
                "no secrets can be read from it",
                where=str(self.secrets_file),
                hint="ddtree-deploy launch HOST --replace writes it anew",
            ) from error

    def write(self, spec: ServiceSpec, secrets: Dict[str, str]) -> None:
        """Write the spec and the files that hold secrets; these are never readable by others, not even while new."""
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_atomic(self.secrets_file, codec.dumps(secrets), 0o600)
        if spec.has_engine_config:  # JSON strings are YAML; the engine reads it, so no key is in its command line
            keys = (("api-key", API_KEY), ("admin-api-key", ADMIN_API_KEY))
            lines = (f"{option}: {json.dumps(secrets[name])}\n" for option, name in keys if name in secrets)
            write_atomic(self.engine_config, "".join(lines), 0o600)
        elif self.engine_config.exists():
            self.engine_config.unlink()
        write_atomic(self.spec_file, codec.dumps(spec), 0o644)


def write_atomic(path: Path, text: str, mode: int) -> None:
    """Write ``path`` by rename, so that a reader sees the old or the new text and never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    if temporary.exists():  # of an earlier process with our pid
        temporary.unlink()
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:  # such as a full disk: nothing half written stays, secrets least of all
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def services_dir(root: Path) -> Path:
    return root / "services"


def service_folders(root: Path) -> List[ServiceFolder]:
    """The services that were ever launched under ``root``, by name."""
    directory = services_dir(root)
    if not directory.is_dir():
        return []
    folders = (ServiceFolder(path) for path in sorted(directory.iterdir()) if path.is_dir())
    return [folder for folder in folders if folder.spec_file.exists()]


def is_loopback(listen: str) -> bool:
    """Whether what listens there is reached from this host alone."""
    if listen == "localhost":
        return True
    try:
        return ipaddress.ip_address(listen).is_loopback
    except ValueError:  # a host name: where it points to is not ours to trust
        return False
