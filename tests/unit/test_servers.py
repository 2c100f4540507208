"""The test servers and the proxy do what the other tests rely on."""

from __future__ import annotations

import itertools
import select
import socket
import subprocess
import sys
import threading

import pytest
import redis

from tests.servers import RedisCluster, RedisSentinel, RedisServer, TcpProxy
from tests.servers.process import wait_until


def _bare(port: int, **options: object) -> redis.Redis:
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(port=port, retry=Retry(NoBackoff(), 0), **options)  # type: ignore[arg-type]


def test_a_server_answers_restarts_on_its_port_and_is_gone_after_stop(redis_flavour: RedisServer) -> None:
    with RedisServer(redis_flavour.flavour, args=("--appendonly", "yes")) as server:
        port, folder, pid = server.port, server.folder, server.pid
        with server.client() as client:
            client.set("kept", "1")
        server.restart()
        assert server.port == port
        with server.client() as client:
            assert client.get("kept") == b"1"
        server.kill()
        assert not server.running
        server.start()
        assert server.pid != pid
    assert not folder.exists()
    with pytest.raises(redis.ConnectionError):
        _bare(port).ping()


def test_a_password_is_asked_for() -> None:
    with RedisServer("valkey", password="secret") as server:
        with server.client() as client:
            assert client.ping()
        with pytest.raises(redis.AuthenticationError):
            _bare(server.port).ping()


def test_a_killed_run_leaves_no_server_behind() -> None:
    script = (
        "import os, signal\n"
        "from tests.servers import RedisServer\n"
        "server = RedisServer('valkey').start()\n"
        "print(server.port, server.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -9, done.stderr
    port, folder = done.stdout.split()

    def gone() -> bool:
        try:
            _bare(int(port)).ping()
        except redis.ConnectionError:
            from pathlib import Path

            return not Path(folder).exists()
        return False

    wait_until(gone, "the janitor to end the server")


def test_the_proxy_drops_one_reply_after_the_command_took_effect(valkey: RedisServer) -> None:
    with TcpProxy(valkey.port) as proxy, valkey.client() as behind:
        behind.delete("n")
        client = _bare(proxy.port)
        client.ping()
        proxy.drop_next_reply(b"INCR")
        assert client.get("n") is None  # not the command that was asked for
        with pytest.raises(redis.ConnectionError):
            client.incr("n")
        assert proxy.faults["dropped_replies"] == 1
        assert behind.get("n") == b"1"
        assert client.incr("n") == 2


def test_the_proxy_cuts_a_reply_in_the_middle(valkey: RedisServer) -> None:
    with TcpProxy(valkey.port) as proxy, valkey.client() as behind:
        behind.set("long", "x" * 1000)
        client = _bare(proxy.port)
        client.ping()
        proxy.cut_replies_after(10)
        with pytest.raises(redis.ConnectionError):
            client.get("long")
        assert proxy.faults["cut_replies"] == 1


def test_the_proxy_refuses_swallows_delays_and_heals(valkey: RedisServer) -> None:
    with TcpProxy(valkey.port) as proxy:
        client = _bare(proxy.port, socket_timeout=0.2)
        client.ping()
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        assert proxy.faults["refusing"] == 1
        assert proxy.faults["resets"] == 1
        proxy.heal()
        assert client.ping()
        proxy.blackhole()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        assert proxy.faults["blackholed_bytes"] > 0
        proxy.heal()
        assert client.ping()
        proxy.latency(0.02)
        assert client.ping()
        assert proxy.faults["delayed_chunks"] >= 1


def test_the_proxy_has_reset_a_connection_when_it_says_so(valkey: RedisServer) -> None:
    busy = threading.Event()
    busy.set()
    thread = threading.Thread(target=lambda: all(busy.is_set() for _ in itertools.count()))
    thread.start()  # without somebody who takes the processor away, the proxy's threads are fast enough
    try:
        with TcpProxy(valkey.port) as proxy:
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", proxy.port)) as client:
                    client.sendall(b"PING\r\n")
                    assert client.recv(100) == b"+PONG\r\n"
                    proxy.reset_all()
                    assert select.select([client], [], [], 0)[0] == [client]
    finally:
        busy.clear()
        thread.join()


def test_a_cluster_shares_the_slots() -> None:
    with RedisCluster(3) as cluster, cluster.client() as client:
        for number in range(30):
            client.set(f"key-{number}", number)
        assert sum(node.client().dbsize() for node in cluster.masters) == 30
        assert all(node.client().dbsize() for node in cluster.masters)


def test_sentinel_promotes_the_replica() -> None:
    with RedisSentinel() as sentinel:
        assert sentinel.master_port() == sentinel.master.port
        sentinel.master.kill()
        sentinel.wait_for_failover()
        with sentinel.replica.client() as client:
            assert client.set("written", "after")
