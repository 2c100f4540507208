"""Real servers for tests: started on a free loopback port in a temporary folder, never left behind.

Every server is a context manager that starts on entry and is gone, with its folder, on exit:

    with RedisServer("redis7") as server:            # or "redis8", "valkey"
        server.url, server.port                      # redis://127.0.0.1:20381/0
        server.client().ping()                       # a bare redis-py client, for looking behind a broker
        server.restart()                             # same port, same folder (so AOF data come back)
        server.kill()                                # SIGKILL, as in a crash; start() brings it back
        server.pause(); server.resume()              # SIGSTOP and SIGCONT: a server that hangs

    RedisServer("valkey", args=("--appendonly", "yes"), password="secret")

    with RedisCluster(3, replicas=1) as cluster:     # .addresses "host:port,host:port", .masters
    with RedisSentinel() as sentinel:                # .addresses, .service, .master, .wait_for_failover()

    with PostgresServer(password="secret") as server:    # .url, .connect() is a bare psycopg connection
    with MariaDbServer() as server:                  # .url, .connect() is a bare PyMySQL connection

    with TcpProxy(server.port) as proxy:             # connect to proxy.port instead
        proxy.drop_next_reply(b"XADD")               # the command arrives, its reply never does
        proxy.cut_replies_after(10)                  # ten bytes of the next reply, then a reset
        proxy.refuse() / .blackhole() / .latency(0.05) / .reset_all() / .heal()
        proxy.faults                                 # how often each fault fired: assert on it

Starting a server waits until it answers, by polling its socket. What this machine cannot provide calls
`requirement_missing(reason)`: the test is skipped, and the run's last lines say why; with
MILLSTREAM_REQUIRE_ALL=1 it fails instead.

A further kind of server is a subclass of `process.Server` in a module of its own beside `redis.py`: it says
how its command line looks (`command`) and how to ask whether it is ready (`answers`).

Fixtures that start each Redis once per run (`redis7`, `redis8`, `valkey`, and `redis_flavour` for all three)
are in `tests/conftest.py`.
"""

from tests.servers.mariadb import MariaDbServer
from tests.servers.postgres import PostgresServer
from tests.servers.process import Server, free_port, requirement_missing
from tests.servers.proxy import TcpProxy
from tests.servers.redis import FLAVOURS, RedisCluster, RedisSentinel, RedisServer, find_redis

__all__ = [
    "FLAVOURS",
    "MariaDbServer",
    "PostgresServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "Server",
    "TcpProxy",
    "find_redis",
    "free_port",
    "requirement_missing",
]
