from __future__ import annotations

import socket

import pytest
from hosts.sshd import free_port

from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.ports import allocate, is_free
from ddtree_deploy.serve.settings import parse_ports


def listener(address: str = "127.0.0.1") -> socket.socket:
    """On a port that nobody else is given meanwhile, nor those above it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((address, free_port()))
    server.listen()
    return server


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "127.0.0.2", "::1"])
def test_a_listener_on_any_address_makes_a_port_busy(address: str) -> None:
    try:
        server = listener(address)
    except OSError:
        pytest.skip(f"this host has no {address}")
    with server:
        port = server.getsockname()[1]
        assert not is_free(port)
    assert is_free(port)


def test_a_closed_connection_does_not_keep_a_port_busy() -> None:
    server = listener()
    port = server.getsockname()[1]
    client = socket.create_connection(("127.0.0.1", port))
    accepted, _ = server.accept()
    accepted.close()  # the server's side ends first, so that it is the one in TIME_WAIT
    client.close()
    server.close()
    assert is_free(port)


def test_allocation_skips_what_is_taken_and_what_listens() -> None:
    with listener() as server:
        busy = server.getsockname()[1]
        ports = range(busy, busy + 40)
        found = allocate(ports, [busy + 1], 3)
        assert len(set(found)) == 3
        assert not {busy, busy + 1} & set(found)
        assert set(found) <= set(ports)


def test_a_service_keeps_its_ports() -> None:
    with listener() as server:
        first = server.getsockname()[1] + 1
        ports = range(first, first + 40)
        kept = [port for port in ports if is_free(port)][5:7]
        assert allocate(ports, [], 2, prefer=kept) == kept
        assert allocate(ports, [kept[0]], 2, prefer=kept)[0] == kept[1]


def test_ports_of_what_will_be_stopped_count_as_free() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        assert allocate(range(port, port + 1), [], 1, freed=[port]) == [port]


def test_used_up() -> None:
    with listener() as server:
        port = server.getsockname()[1]
        with pytest.raises(InputError) as caught:
            allocate(range(port, port + 1), [], 1)
    assert caught.value.id == "ports-exhausted"
    assert caught.value.exit_code == 3
    assert str(port) in caught.value.message


@pytest.mark.parametrize(
    ("value", "expected"), [(None, (7, 9)), ([30000, 30001], (30000, 30001)), ([5000], (5000, 5000))]
)
def test_ranges(value: list[int] | None, expected: tuple[int, int]) -> None:
    ports = parse_ports(value, (7, 9))
    assert (ports[0], ports[-1]) == expected


@pytest.mark.parametrize("value", [[], [2, 1], [0, 10], [1, 65536], [1, 2, 3]])
def test_bad_ranges(value: list[int]) -> None:
    with pytest.raises(InputError, match="not a range"):
        parse_ports(value, (7, 9))
