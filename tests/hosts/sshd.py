"""Real SSH servers on loopback for tests: OpenSSH's sshd as the current user, with keys and a HOME of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import shared
from processes import descendants, having, name, wait_until

from ddtree_deploy.transport import ConnectionSettings

_EXTRA_PATH = ["/usr/sbin", "/usr/local/sbin", "/sbin"]


def find_sshd() -> str | None:
    """sshd must be started by its absolute path."""
    return shutil.which("sshd", path=os.pathsep.join([os.environ.get("PATH", ""), *_EXTRA_PATH]))


def free_port(address: str = "127.0.0.1") -> int:
    """A port on which nothing listens now, nor soon: other workers have others, connections are given higher ones."""
    return shared.free_port(2500 + shared.worker_number() % 4 * 2000, 2000, address)


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """A new key pair ``path`` and ``path.pub``."""
    for old in (path, path.with_name(path.name + ".pub")):
        old.unlink(missing_ok=True)
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", "test", "-f", str(path)]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


class Sshd:
    """A context manager. ``home`` is the HOME of its sessions; ``environment`` is added to theirs; ``options`` are
    lines for sshd_config. Without ``identity`` a key pair is made and let in."""

    def __init__(
        self,
        folder: Path,
        *,
        address: str = "127.0.0.1",
        identity: Path | None = None,
        environment: dict[str, str] | None = None,
        options: list[str] | None = None,
        host_key_kinds: tuple[str, ...] = ("ed25519",),
    ) -> None:
        self.folder = folder
        self.address = address
        self.user = getpass.getuser()
        self.home = folder / "home"
        self.home.mkdir(parents=True)
        self.log = folder / "sshd.log"
        self.port = free_port(address)
        self.identity = identity or make_key(folder / "identity")
        self.authorized_keys = folder / "authorized_keys"
        shutil.copyfile(f"{self.identity}.pub", self.authorized_keys)
        self.host_keys = [make_key(folder / f"host_{kind}", kind) for kind in host_key_kinds]
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(self.known_hosts_lines())
        temporary = self.home / "tmp"  # what others have left in the machine's is not there: an agent is looked for
        temporary.mkdir()
        own = {"HOME": self.home, "XDG_CACHE_HOME": self.home / ".cache", "TMPDIR": temporary}
        self._environment = {**{name: str(path) for name, path in own.items()}, **(environment or {})}
        self._options = options or []
        self._process: subprocess.Popen[bytes] | None = None

    def settings(self, **changes: object) -> ConnectionSettings:
        """How to reach it."""
        values: dict[str, object] = {
            "kind": "ssh",
            "address": self.address,
            "port": self.port,
            "user": self.user,
            "identity": str(self.identity),
            "connect_timeout": 30,  # a busy machine is no host that is down
        }
        return ConnectionSettings(**{**values, **changes})  # type: ignore[arg-type]

    @property
    def hop(self) -> str:
        """As an entry of ``jump``."""
        return f"{self.user}@{self.address}:{self.port}"

    def known_hosts_lines(self, kinds: tuple[str, ...] | None = None) -> str:
        """What known_hosts must say of this server."""
        lines = []
        for key in self.host_keys:
            kind, blob = Path(f"{key}.pub").read_text().split()[:2]
            if kinds is None or key.name.removeprefix("host_") in kinds:
                lines.append(f"[{self.address}]:{self.port} {kind} {blob}\n")
        return "".join(lines)

    def change_host_keys(self) -> None:
        """As if reinstalled: new host keys, same address. ``known_hosts`` keeps the old ones."""
        self.stop()
        for key in self.host_keys:
            make_key(key, key.name.removeprefix("host_"))
        self.start()

    def start(self) -> Self:
        sshd = find_sshd()
        assert sshd is not None, "install openssh-server"
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's privilege separation folder
        config = self.folder / "sshd_config"
        config.write_text("\n".join([*self._config(), *self._options]) + "\n")
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sshd, "-D", "-e", "-f", str(config)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        wait_until(self._answers, f"the sshd that writes {self.log}", 60)
        return self

    def stop(self) -> None:
        """The server and its connections."""
        if self._process is None:
            return
        self.drop_connections()
        self._process.terminate()
        self._process.wait(60)
        self._process = None

    def drop_connections(self) -> None:
        """Kill the processes that serve connections, as a crash or reboot would."""
        assert self._process is not None
        for pid in descendants(self._process.pid):
            if name(pid).startswith("sshd"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """What runs in its sessions, sshd's own processes left out."""
        # By their HOME, not by descent: a process outlives the sshd of a connection that was lost.
        return [pid for pid in having("HOME", self.home) if not name(pid).startswith("sshd")]

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _config(self) -> list[str]:
        return [
            f"ListenAddress {self.address}",
            f"Port {self.port}",
            *(f"HostKey {key}" for key in self.host_keys),
            f"AuthorizedKeysFile {self.authorized_keys}",
            "PidFile none",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "MaxStartups 100",
            "SetEnv " + " ".join(f'"{name}={value}"' for name, value in self._environment.items()),
        ]

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, f"sshd ended: {self.log.read_text()}"
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), 20) as connection:
            return connection.recv(4) == b"SSH-"
        return False


class SilentPort:
    """Accepts connections and never says a word, or only ``greeting``. A context manager."""

    def __init__(self, address: str = "127.0.0.1", greeting: bytes = b"") -> None:
        self.address = address
        self._greeting = greeting
        self._socket = socket.create_server((address, 0))
        self.port = int(self._socket.getsockname()[1])
        self._accepted: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self._accepted.append(connection)
                connection.sendall(self._greeting)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        for connection in self._accepted:
            connection.close()
