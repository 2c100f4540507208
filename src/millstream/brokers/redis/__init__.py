"""The stream broker on Redis and Valkey: standalone, Sentinel and Cluster."""

from millstream.brokers.redis.broker import RedisStreamBroker

__all__ = ["RedisStreamBroker"]
