"""Public key authentication: the identity files named, the SSH agent's keys, the user's default keys."""

from __future__ import annotations

import base64
import binascii
import contextlib
from pathlib import Path

import paramiko

from ddtree_deploy.errors import UnreachableError
from ddtree_deploy.transport.hops import Hop
from ddtree_deploy.transport.sockets import Deadline

AGENT_TIMEOUT = 3.0
DEFAULT_IDENTITIES = ("id_ed25519", "id_ecdsa", "id_rsa")


def authenticate(transport: paramiko.Transport, hop: Hop, deadline: Deadline) -> None:
    """Log in as ``hop.user``. Raises UnreachableError ``auth-failed`` that says what was tried."""
    _Attempt(transport, hop, deadline).run()


class _Attempt:
    def __init__(self, transport: paramiko.Transport, hop: Hop, deadline: Deadline) -> None:
        self._transport = transport
        self._hop = hop
        self._deadline = deadline
        self._tried: list[str] = []

    def run(self) -> None:
        if self._server_wants_no_key():
            return
        if any(self._offer_file(path) for path in self._hop.identities):
            return
        if self._offer_agent_keys():
            return
        if not self._hop.only_identities:
            folder = Path.home() / ".ssh"
            files = [folder / name for name in DEFAULT_IDENTITIES]
            if any(self._offer_file(path) for path in files if path.is_file() and path not in self._hop.identities):
                return
        raise self._failed("")

    def _server_wants_no_key(self) -> bool:
        """Ask what the server accepts. Some need nothing (the network has authenticated us already)."""
        self._transport.auth_timeout = self._deadline.left()
        try:
            self._transport.auth_none(self._hop.user)
        except paramiko.BadAuthenticationType as error:
            if "publickey" not in error.allowed_types:
                accepted = ", ".join(error.allowed_types) or "nothing"
                raise self._failed(f"it accepts {accepted}, and no public keys") from error
            return False
        except paramiko.SSHException as error:
            raise self._failed(str(error)) from error
        return self._transport.is_authenticated()

    def _offer_file(self, path: Path) -> bool:
        try:
            key = paramiko.PKey.from_path(path)
        except (TypeError, paramiko.PasswordRequiredException):  # TypeError: cryptography's "password was not given"
            self._tried.append(f"{path} (needs a passphrase: ssh-add it)")
            return False
        except OSError as error:
            self._tried.append(f"{path} ({error.strerror})")
            return False
        except Exception as error:  # the key libraries raise many kinds for a file that is no key
            self._tried.append(f"{path} (not a usable key: {error})")
            return False
        return self._offer(key, str(path))

    def _offer_agent_keys(self) -> bool:
        agents: list[paramiko.Agent] = []

        def keys() -> tuple[paramiko.AgentKey, ...]:
            agents.append(paramiko.Agent())
            return agents[0].get_keys()

        try:
            found = Deadline(min(AGENT_TIMEOUT, self._deadline.left() / 2)).call(keys)
            wanted = _public_halves(self._hop.identities) if self._hop.only_identities else None
            return any(
                self._offer(key, f"agent key {key.fingerprint}")
                for key in found
                if wanted is None or key.asbytes() in wanted
            )
        except (TimeoutError, paramiko.SSHException) as error:
            self._tried.append(f"SSH agent ({str(error) or 'no answer'})")
            return False
        finally:
            for agent in agents:
                agent.close()

    def _offer(self, key: paramiko.PKey, name: str) -> bool:
        self._transport.auth_timeout = self._deadline.left()
        try:
            further = self._transport.auth_publickey(self._hop.user, key)
        except paramiko.SSHException as error:
            self._tried.append(name)
            if not self._transport.is_active() or not self._deadline.left():
                raise self._failed(str(error).rstrip(".")) from error
            return False
        if further:
            self._tried.append(name)
            raise self._failed(f"after the key it also wants {', '.join(further)}")
        return True

    def _failed(self, why: str) -> UnreachableError:
        tried = "; ".join(self._tried) or "no key of ours to offer"
        return UnreachableError(
            "auth-failed",
            f"{self._hop.label} does not let us in" + (f": {why}" if why else ""),
            where=self._hop.label,
            hint=f"tried {tried}. Check user and identity; `ssh {self._hop.user}@{self._hop.address}` must work"
            if self._tried
            else f"{tried}: set identity, or use an SSH agent",
        )


def _public_halves(identities: tuple[Path, ...]) -> set[bytes]:
    """The public keys in ``FILE.pub``: how to know an agent's key as one of the identity files."""
    keys = set()
    for path in identities:
        with contextlib.suppress(OSError, IndexError, binascii.Error, UnicodeDecodeError):
            keys.add(base64.b64decode(path.with_name(path.name + ".pub").read_text().split()[1]))
    return keys
