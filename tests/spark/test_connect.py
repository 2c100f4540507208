"""Spark Connect: a server from the PySpark package, a client without Java, the format found by its name."""

from __future__ import annotations

import json
import socket
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest

from millstream import open_broker
from tests.servers import RedisServer
from tests.servers.process import requirement_missing
from tests.spark.cluster import SparkServer, spark_program
from tests.spark.conftest import require_spark, run_python

pytestmark = [pytest.mark.timeout(300), pytest.mark.long("a Java of its own")]


class ConnectServer(SparkServer):
    """A Spark Connect server on local[2]."""

    def command(self) -> list[str]:
        settings = {
            "spark.master": "local[2]",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        server = "org.apache.spark.sql.connect.service.SparkConnectServer"
        return spark_program("spark-submit", "--class", server, *options, folder=self.folder, memory="700m")

    def answers(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True


CLIENT = """
import json, sys
from millstream.spark import session
from millstream.spark.enqueue import enqueue
master, url, stream = sys.argv[1:]
spark = session(master, app_name="connect-test", ship=True)
read = spark.read.format("millstream").option("url", url).option("stream", stream).load()
total = read.selectExpr("sum(from_json(data, 'v INT').v) AS total").collect()[0].total
rows = spark.range(50).selectExpr("id AS user_id")
done = [enqueue(spark, rows, url, "Mail", queue=stream, name=stream) for _ in range(2)]
print(json.dumps([type(spark).__module__, total, [[one.state, one.rows] for one in done]]))
spark.stop()
"""


def test_the_format_is_found_through_spark_connect(
    redis7: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_spark()
    if find_spec("grpc") is None:
        requirement_missing("the Python packages of pyspark[connect]")
    stream = f"connect-{uuid.uuid4().hex}"
    with open_broker(redis7.url) as broker:
        broker.xadd_many(stream, [{"v": number} for number in range(101)])
    with ConnectServer() as server, monkeypatch.context() as patch:
        patch.setenv("PATH", str(Path(sys.executable).parent))  # the client has no Java
        patch.delenv("JAVA_HOME", raising=False)
        done = run_python(CLIENT, f"sc://127.0.0.1:{server.port}", redis7.url, stream, timeout=200)
        assert done.returncode == 0, done.stderr + server.log()[-3000:]
    module, total, pushed = json.loads(done.stdout)
    assert module.startswith("pyspark.sql.connect")
    assert total == 5050
    assert pushed == [["pushed", 50], ["already done", 0]]
