"""Ports are ours from the moment they are taken, and a taken one is reported by name."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pointsman.local.ports import LOOPBACK, Ports, PortTaken, UsualPorts, holder_of


def listen(port: int = 0) -> socket.socket:
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind((LOOPBACK, port))
    server.listen()
    return server


def test_a_server_can_listen_on_a_held_port_and_again_after_a_restart() -> None:
    with Ports() as ports:
        port = ports.take("a server")
        assert len({ports.take("one of many") for _ in range(100)} - {port}) == 100
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, port), timeout=1)
        for _ in range(2):
            with listen(port) as server:
                assert server.getsockname()[1] == port


def test_a_wanted_port_that_is_free_is_given() -> None:
    with Ports() as ports:
        port = ports.take("any")
    with Ports() as ports:
        assert ports.take("the same", port) == port
        assert ports.held == {port: "the same"}
        with pytest.raises(PortTaken, match="wanted for second, is taken by this process, for the same"):
            ports.take("second", port)


def test_a_taken_port_is_reported_with_its_purpose_and_its_holder() -> None:
    with listen() as server, Ports() as ports:
        port = server.getsockname()[1]
        with pytest.raises(PortTaken) as caught:
            ports.take("Envoy's listener", port)
        assert f"port {port} of 127.0.0.1, wanted for Envoy's listener, is taken by " in str(caught.value)
        assert caught.value.holder is not None
        assert caught.value.holder.endswith(f"(pid {os.getpid()})")
        assert ports.held == {}


@pytest.mark.parametrize(
    ("address", "option"),
    [("0.0.0.0", socket.SO_REUSEADDR), (LOOPBACK, socket.SO_REUSEPORT)],
    ids=["a server on all addresses", "one that would share it, as Envoy would"],
)
def test_other_servers_have_taken_their_ports_too(address: str, option: int) -> None:
    """With SO_REUSEPORT a second Envoy would get half of the first one's connections."""
    with socket.socket() as server, Ports() as ports:
        server.setsockopt(socket.SOL_SOCKET, option, 1)
        server.bind((address, 0))
        server.listen()
        with pytest.raises(PortTaken):
            ports.take("Envoy's listener", server.getsockname()[1])


def test_a_port_that_another_one_of_us_holds_is_taken_before_anybody_listens() -> None:
    with Ports() as first:
        port = first.take("any")
    with Ports() as first, Ports() as second:
        first.take("Envoy's listener", port)
        with pytest.raises(PortTaken, match="taken by another local stack"):
            second.take("Envoy's listener", port)
        first.close()
        assert second.take("Envoy's listener", port) == port


def test_the_remains_of_connections_don_t_take_a_port() -> None:
    """A server that closes first leaves its port in TIME_WAIT for a minute."""
    with listen() as server:
        port = server.getsockname()[1]
        with socket.create_connection((LOOPBACK, port)) as client:
            accepted, _ = server.accept()
            accepted.close()
            assert client.recv(1) == b""
    with Ports() as ports:
        assert ports.take("Envoy's listener", port) == port


def test_the_holder_may_be_another_process() -> None:
    code = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        holder = holder_of(port)
        child.communicate("\n")
    assert holder is not None
    assert holder.endswith(f"(pid {child.pid})")


def test_without_proc_the_holder_is_unknown(tmp_path: Path) -> None:
    assert holder_of(80, tmp_path) is None
    assert str(PortTaken("x", LOOPBACK, 80, None)).endswith("is taken by an unknown process")


def test_a_usual_port_is_taken_where_it_is_free_and_otherwise_another() -> None:
    with Ports() as ports:
        with socket.create_server((LOOPBACK, 0)) as server:
            usual = server.getsockname()[1]
            assert ports.take("NATS", usual=usual) not in (usual, 0)
        assert ports.take("NATS", usual=usual) == usual
        with pytest.raises(PortTaken, match="this process, for NATS"):
            ports.take("Envoy", usual)


def test_ports_for_processes_of_others_are_not_reserved() -> None:
    with Ports() as ports:
        taken = ports.take("Envoy")
        assert UsualPorts().take("Envoy", usual=taken) == taken
        assert UsualPorts().take("Envoy", 8080, usual=taken) == 8080
