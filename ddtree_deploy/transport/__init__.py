"""Ways to a host: ``connect(host, options)`` gives a :class:`Transport`, ``Transport.agent()`` a running agent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Union

from ddtree_deploy.transport.base import ConnectionSettings, ConnectOptions, Transport

if TYPE_CHECKING:
    from ddtree_deploy.inventory.settings import HostSettings

__all__ = ["ConnectOptions", "ConnectionSettings", "Transport", "connect", "connection_settings"]


def connect(host: Union[HostSettings, ConnectionSettings], options: Optional[ConnectOptions] = None) -> Transport:
    """A connection to ``host``. Raises UnreachableError, InputError."""
    settings = host if isinstance(host, ConnectionSettings) else connection_settings(host)
    options = options or ConnectOptions()
    if settings.kind == "local":
        from ddtree_deploy.transport.local import LocalTransport

        return LocalTransport(settings, options)
    from ddtree_deploy.transport.ssh import SshTransport

    return SshTransport(settings, options)


def connection_settings(host: HostSettings) -> ConnectionSettings:
    """The part of an inventory host that says how to reach it."""
    connection = host.connection
    return ConnectionSettings(
        kind="local" if connection.kind == "local" else "ssh",
        address=connection.address,
        port=connection.port,
        user=connection.user,
        identity=connection.identity,
        jump=list(connection.jump),
        connect_timeout=connection.connect_timeout,
        python=connection.python,
        base_python=f"{host.base}/bin/python" if host.base else None,
    )
