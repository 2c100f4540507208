"""millstream.toml and the environment: connections, the default one, and how workers work.

    default = "main"

    [connections.main]
    url = "redis://localhost:6379/0"
    prefix = "shop"
    history = true                       # or the name of the stream
    archive = "sqlite:///archive.db"     # or a table: { url = "…", completed = false, retention = 604800 }

    [connections.local]
    url = "memory://"

    [worker]
    queues = ["default", "emails"]
    concurrency = 16
    rate_limits.emails = { limit = 10, per = 60 }

The environment wins over the file: MILLSTREAM_URL is the URL of the default connection,
MILLSTREAM_CONNECTIONS__NAME__URL (or another option in its place) that of the connection "name" (or "Name":
capitals make no difference), and MILLSTREAM_DEFAULT names the default one. MILLSTREAM_CONFIG is the path of
the file, where it is not millstream.toml in the current folder. Where nothing says where the jobs are, they
are in the SQLite file millstream.db in the current folder.
"""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from millstream.connecting import ALL
from millstream.drivers.base import RateLimit
from millstream.errors import ConfigurationError, InvalidInput, InvalidName
from millstream.options import check_queue_name, unknown_option

FILE_NAME = "millstream.toml"
# What a program gets that says nothing: a file in the working folder, which survives the program and which
# several processes may use at once.
DEFAULT_URL = "sqlite:///millstream.db"
_PREFIX = "MILLSTREAM_CONNECTIONS__"
_TOP = ("default", "connections", "worker")


@dataclass(frozen=True)
class ConnectionSettings:
    """One connection: its URL, and options as `connect` takes them."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """What a program is told from outside. ``worker`` holds options of WorkerOptions, and ``workers``."""

    default: str = "default"
    connections: Mapping[str, ConnectionSettings] = field(default_factory=dict)
    worker: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""  # the file, where there is one


def load_settings(path: str | Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of the file and the environment. Raises ConfigurationError with the file and the line."""
    env = os.environ if environ is None else environ
    named = path or env.get("MILLSTREAM_CONFIG")
    file = Path(named or FILE_NAME)
    if file.is_file():
        settings = read_settings(file)
    elif named:
        raise ConfigurationError(f"there is no configuration file {str(file)!r}")
    else:
        settings = Settings()
    return _with_environment(settings, env)


def settings_of(connections: Mapping[str, str | Mapping[str, Any]], default: str | None = None) -> Settings:
    """Settings from code: URLs, or options with a ``url``, by name; the first one is the default."""
    if not connections:
        raise ConfigurationError("give at least one connection, such as {'main': 'redis://localhost:6379/0'}")
    found = {name: _connection(name, value, _plain) for name, value in connections.items()}
    chosen = next(iter(found)) if default is None else default
    if chosen not in found:
        raise ConfigurationError(
            f"the default connection {chosen!r} is not one of: {', '.join(sorted(found))}"
        )
    return Settings(chosen, found)


def read_settings(file: Path) -> Settings:
    """The settings of one file. Raises ConfigurationError with the file, the line and what is allowed."""
    try:
        text = file.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = where[1] if where else str(text.count("\n") + 1)  # the others are at the end of the document
        raise ConfigurationError(f"{file}:{line}: {error}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {error}") from error

    def wrong(path: tuple[str, ...], why: str) -> ConfigurationError:
        return ConfigurationError(f"{file}:{line_of(text, path)}: {why}")

    for key in content:
        if key not in _TOP:
            raise wrong((key,), unknown_option("setting", key, _TOP))
    tables = content.get("connections", {})
    if not isinstance(tables, dict):
        raise wrong(("connections",), "connections must be tables, such as [connections.main]")
    connections = {name: _connection(name, value, wrong) for name, value in tables.items()}
    default = content.get("default", next(iter(connections), "default"))
    if not isinstance(default, str) or (connections and default not in connections):
        known = ", ".join(sorted(connections)) or "none"
        raise wrong(("default",), f"default must name a connection ({known}), not {default!r}")
    worker = _worker(content.get("worker", {}), wrong)
    return Settings(default, connections, worker, str(file))


def _plain(path: tuple[str, ...], why: str) -> ConfigurationError:
    return ConfigurationError(why)


def _connection(name: str, value: object, wrong: Any) -> ConnectionSettings:
    from millstream.config import check_connection_option, connection_options  # noqa: PLC0415 - they import this

    place = ("connections", name)
    if isinstance(value, str):
        value = {"url": value}
    if not isinstance(value, Mapping):
        raise wrong(place, f"connection {name!r} must be a URL or a table with one, not {value!r}")
    options = dict(value)
    url = options.pop("url", None)
    if not isinstance(url, str):
        raise wrong((*place, "url"), f"connection {name!r} needs a url, such as redis://localhost:6379/0")
    looked_at = "url"
    try:
        allowed = connection_options(url)
        for looked_at, given in options.items():
            check_connection_option(allowed, looked_at, given)
    except (ConfigurationError, InvalidInput) as error:
        raise wrong((*place, looked_at), f"connection {name!r}: {error}") from None
    return ConnectionSettings(url, options)


def _worker(table: object, wrong: Any) -> dict[str, Any]:
    """The worker's options, each checked as a worker would check it."""
    from millstream.worker.options import LaunchOptions, WorkerOptions  # noqa: PLC0415 - producers need neither

    if not isinstance(table, dict):
        raise wrong(("worker",), f"worker must be a table, not {table!r}")
    allowed = [*(each.name for each in fields(WorkerOptions)), "workers"]
    found: dict[str, Any] = {}
    for name, value in table.items():
        place = ("worker", name)
        if name not in allowed:
            raise wrong(place, unknown_option("worker option", name, allowed))
        found[name] = _rate_limits(value, wrong) if name == "rate_limits" else value
        if name == "queues":
            if not isinstance(value, list):
                raise wrong(place, f"queues must be a list of names, not {value!r}")
            found[name] = tuple(value)
        try:
            (LaunchOptions if name == "workers" else WorkerOptions)(**{name: found[name]})
        except (ConfigurationError, InvalidInput) as error:
            raise wrong(place, str(error)) from None
    return found


def _rate_limits(value: object, wrong: Any) -> dict[str, RateLimit]:
    place = ("worker", "rate_limits")
    if not isinstance(value, dict):
        raise wrong(place, "rate_limits must be a table such as emails = { limit = 10, per = 60 }")
    limits = {}
    for queue, limit in value.items():
        try:
            limits[check_queue_name(queue)] = RateLimit(**limit)
        except InvalidName as error:
            raise wrong((*place, queue), str(error)) from None
        except (TypeError, ValueError):
            raise wrong(
                (*place, queue),
                f"the limit of {queue!r} must be as {{ limit = 10, per = 60 }}, a whole number of at least 1 "
                f"and seconds above 0, not {limit!r}",
            ) from None
    return limits


def _with_environment(settings: Settings, env: Mapping[str, str]) -> Settings:
    tables: dict[str, dict[str, Any]] = {
        name: {"url": known.url, **known.options} for name, known in settings.connections.items()
    }
    for variable in sorted(env):
        if not variable.startswith(_PREFIX):
            continue
        name, separator, option = variable.removeprefix(_PREFIX).lower().partition("__")
        if not name or not separator or not option:
            raise ConfigurationError(f"{variable}: expected a form such as {_PREFIX}MAIN__URL")
        tables.setdefault(_meant(variable, name, tables), {})[option] = _value(option, env[variable])
    default = env.get("MILLSTREAM_DEFAULT") or settings.default
    if url := env.get("MILLSTREAM_URL"):
        tables.setdefault(default, {})["url"] = url
    elif not tables:
        tables[default] = {"url": DEFAULT_URL}
    if default not in tables and not settings.connections and not env.get("MILLSTREAM_DEFAULT"):
        default = next(iter(tables))  # the only one there is, or the first by name
    if default not in tables:
        raise ConfigurationError(
            f"the default connection {default!r} is not known; known are: {', '.join(sorted(tables))}"
        )
    connections = {
        name: settings.connections[name]
        if name in settings.connections and _same(settings.connections[name], table)
        else _connection(name, table, _from_environment)
        for name, table in tables.items()
    }
    return Settings(default, connections, settings.worker, settings.source)


def _meant(variable: str, name: str, known: Iterable[str]) -> str:
    """The connection that a variable names, where variables are written in capitals and names in any case."""
    found = [each for each in known if each.lower() == name]
    if len(found) > 1:
        raise ConfigurationError(
            f"{variable} could mean each of the connections {', '.join(sorted(found))}; give them names that "
            "differ in more than their capitals"
        )
    return found[0] if found else name


def _same(known: ConnectionSettings, table: Mapping[str, Any]) -> bool:
    return {"url": known.url, **known.options} == table


def _from_environment(path: tuple[str, ...], why: str) -> ConfigurationError:
    return ConfigurationError(f"{_PREFIX}{'__'.join(path[1:]).upper()}: {why}")


def _value(option: str, text: str) -> Any:
    """What a text of the environment means; one that means nothing stays a text, which the check refuses."""
    known = ALL.get(option)
    try:
        return text if known is None else known.read(text)
    except (ValueError, KeyError):
        return text


_HEADER = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY = re.compile(r"\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_PART = re.compile(r"[\w-]+|\"[^\"]*\"|'[^']*'")


def line_of(text: str, path: tuple[str, ...]) -> int:
    """The line on which ``path`` is set in a TOML document; where it is not, that of its nearest table."""
    table: tuple[str, ...] = ()
    best, depth = 1, 0
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.fullmatch(line.split("#")[0].rstrip()):
            place = table = _parts(header[1])
        elif key := _KEY.match(line):
            place = table + _parts(key[1])
        else:
            continue
        common = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(place, path, strict=False))
        )
        if common > depth:
            best, depth = number, common
        inline = line.partition("=")[2]
        if (
            depth < len(path)
            and place == path[: len(place)]
            and re.search(rf"\b{re.escape(path[-1])}\s*=", inline)
        ):
            return number  # an inline table: { limit = 10 }
    return best


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))
