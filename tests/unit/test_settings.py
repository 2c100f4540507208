"""millstream.toml and the environment; a mistake gives the file, the line and what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream import QueueManager, RateLimit, connect
from millstream.errors import ConfigurationError
from millstream.settings import line_of, load_settings

GOOD = """\
# the shop's queues
default = "main"

[connections.main]
url = "redis://localhost:6379/0"
prefix = "shop"
max_payload = 2048

[connections]
local = "memory://"

[worker]
queues = ["default", "emails"]
concurrency = 4
workers = 2
lease = 10.5
rate_limits.emails = { limit = 10, per = 60 }
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and an environment that says nothing."""
    monkeypatch.chdir(tmp_path)
    for name in ("MILLSTREAM_URL", "MILLSTREAM_CONFIG", "MILLSTREAM_DEFAULT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def write(text: str) -> Path:
    path = Path("millstream.toml")
    path.write_text(text)
    return path


def test_a_whole_file() -> None:
    write(GOOD.replace("[connections]\nlocal", "[connections.local]\nurl"))
    settings = load_settings()
    assert settings.default == "main"
    assert settings.connections["main"].url == "redis://localhost:6379/0"
    assert settings.connections["main"].options == {"prefix": "shop", "max_payload": 2048}
    assert settings.connections["local"].url == "memory://"
    assert settings.worker == {
        "queues": ("default", "emails"),
        "concurrency": 4,
        "workers": 2,
        "lease": 10.5,
        "rate_limits": {"emails": RateLimit(10, 60)},
    }
    assert settings.source == "millstream.toml"


def test_a_rate_limit_may_be_for_a_queue_that_other_workers_serve() -> None:
    write("[worker]\nrate_limits.emails = { limit = 10, per = 60 }")
    assert load_settings().worker == {"rate_limits": {"emails": RateLimit(10, 60)}}


def test_nothing_said_is_a_file_in_the_working_folder(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.connections["default"].url == "sqlite:///millstream.db"
    with connect() as queue:
        assert queue.driver.capabilities.durable is True
        job_id = queue.enqueue("email.send")
    with connect() as queue:
        assert queue.find(job_id) is not None
    assert (tmp_path / "millstream.db").is_file()


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('default = "main', 1, "Illegal|nterminated|Unterminated|Expected"),
        ("a = 1\n\nb = ", 3, "alid value"),
        (
            'conections.main = "memory://"',
            1,
            r"unknown setting 'conections' \(did you mean 'connections'\?\)",
        ),
        (
            '# one\n[connections.main]\nurl = "memory://"\nprefx = "x"',
            4,
            r"'prefx' \(did you mean 'prefix'\?\)",
        ),
        (
            '[connections.main]\nurl = "memory://"\ncodec = "pickle"',
            3,
            "'pickle' is not a codec; use one of json",
        ),
        ('[connections.main]\nurl = "memory://"\ncodec = 5', 3, "5 is not a codec; use one of json"),
        (
            '[connections.main]\nmax_payload = "big"\nurl = "memory://"',
            2,
            "whole number of bytes above 0, not 'big'",
        ),
        (
            '[connections.main]\nurl = "memory://"\nprefix = 5',
            3,
            "5 cannot be a prefix name: it must be a text",
        ),
        ('[connections.main]\nurl = "memory://"\nprefix = "a{b"', 3, "it has a brace"),
        (
            '[connections.main]\nurl = "redis://h"\nmax_connections = "5"',
            3,
            "max_connections must be a whole number",
        ),
        (
            '[connections.main]\nurl = "redis://h"\nsocket_timeout = nan',
            3,
            "socket_timeout must be a number of sec",
        ),
        (
            '[connections.main]\nurl = "redis://h"\npassword = 1234',
            3,
            "password must be a text, not what was given",
        ),
        ('[connections.main]\nurl = "redis://h"\nprotocol = 4', 3, "protocol must be 2 or 3, not 4"),
        (
            '[connections.main]\nurl = "sqlite:///f.db"\npool_size = 0',
            3,
            "pool_size must be a whole number of at",
        ),
        (
            '[connections.main]\nurl = "sqlite:///f.db"\ncreate = "yes"',
            3,
            "create must be true or false, not 'yes'",
        ),
        (
            '[connections.main]\nurl = "memory://"\nprefix = "x"\nprefx = "y"',
            4,
            r"'prefx' \(did you mean 'prefix'\?\)",
        ),
        ('[connections.main]\n\nurl = "ftp://x"', 3, "'ftp'; use one of: memory://"),
        ('[connections.main]\nurl = "sqs://x"', 2, "sqs:// is not available yet"),
        ("[connections.main]\nprefix = 'x'", 1, "needs a url"),
        ("[connections]\nmain = 7", 2, "must be a URL or a table"),
        ("connections = 3", 1, "connections must be tables"),
        (
            'default = "x"\n[connections.main]\nurl = "memory://"',
            1,
            r"default must name a connection \(main\)",
        ),
        (
            "\n[worker]\nconcurency = 3",
            3,
            r"unknown worker option 'concurency' \(did you mean 'concurrency'\?\)",
        ),
        ('[worker]\nlease = 5\nconcurrency = "many"', 3, "concurrency"),
        ("[worker]\n# none\nlease = 0", 3, "lease"),
        ("[worker]\nworkers = 0", 2, "workers cannot be 0; expected a whole number"),
        ("[worker]\nworkers = true", 2, "workers cannot be True; expected a whole number"),
        ("[worker]\nconcurrency = 2\nname = 5", 3, "5 cannot be a worker name: it must be a text"),
        ('[worker]\nname = "~x"', 2, "'~x' cannot be a worker name"),
        ('[worker]\nname = "w"\nqueues = ["a{b"]', 3, "'a{b' cannot be a queue name: it has a brace"),
        ("[worker]\nqueues = [5]", 2, "5 cannot be a queue name: it must be a text"),
        ("[worker]\nqueues = []", 2, "queues cannot be .*at least one name"),
        ('[worker]\nrate_limits."a{b" = { limit = 1 }', 2, "'a{b' cannot be a queue name"),
        (
            "[worker]\nrate_limits.emails = { limit = 1.5 }",
            2,
            "limit of 'emails' .* a whole number of at least 1",
        ),
        ("[worker]\nrate_limits.emails = { limit = true }", 2, "limit of 'emails'"),
        ("[worker]\nrate_limits.emails = { limit = 1, per = inf }", 2, "limit of 'emails'"),
        ("[worker]\nrate_limits.emails = 7", 2, "limit of 'emails'"),
        ('[worker]\nqueues = "default"', 2, "queues must be a list"),
        ("[worker]\nrate_limits = 3", 2, "rate_limits must be a table"),
        (
            '[worker]\nqueues = ["emails"]\n[worker.rate_limits]\nemails = { limit = 0 }',
            4,
            "limit of 'emails'",
        ),
        ('[worker]\nqueues = ["emails"]\nrate_limits.emails = { limt = 1 }', 3, "limit of 'emails'"),
        ("worker = 1", 1, "worker must be a table"),
    ],
)
def test_a_mistake_gives_file_line_and_what_is_allowed(text: str, line: int, words: str) -> None:
    write(text)
    with pytest.raises(ConfigurationError, match=words) as caught:
        load_settings()
    assert str(caught.value).startswith(f"millstream.toml:{line}: "), str(caught.value)


def test_a_file_that_is_named_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLSTREAM_CONFIG", "elsewhere.toml")
    with pytest.raises(ConfigurationError, match=r"no configuration file 'elsewhere\.toml'"):
        load_settings()
    Path("elsewhere.toml").write_text('[connections.a]\nurl = "memory://"')
    assert load_settings().default == "a"


def test_a_file_that_is_no_text() -> None:
    Path("millstream.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_settings()


def test_the_environment_wins() -> None:
    write('default = "a"\n[connections.a]\nurl = "memory://"\n[connections.b]\nurl = "memory://"')
    env = {
        "MILLSTREAM_URL": "redis://one",
        "MILLSTREAM_CONNECTIONS__B__URL": "redis://two",
        "MILLSTREAM_CONNECTIONS__B__MAX_PAYLOAD": "77",
        "MILLSTREAM_CONNECTIONS__C__URL": "redis://three",
    }
    settings = load_settings(environ=env)
    assert {name: known.url for name, known in settings.connections.items()} == {
        "a": "redis://one",
        "b": "redis://two",
        "c": "redis://three",
    }
    assert settings.connections["b"].options == {"max_payload": 77}
    assert load_settings(environ={"MILLSTREAM_DEFAULT": "b"}).default == "b"


@pytest.mark.parametrize(
    ("url", "option", "text", "value"),
    [
        ("redis://h", "MAX_CONNECTIONS", "5", 5),
        ("redis://h", "KEY_TTL", "60", 60.0),
        ("redis://h", "SOCKET_TIMEOUT", "1.5", 1.5),
        ("redis://h", "SOCKET_KEEPALIVE", "off", False),
        ("redis://h", "PASSWORD", "1234", "1234"),
        ("memory://", "KEY_TTL", "60", 60.0),
        ("memory://", "HISTORY", "yes", True),
        ("memory://", "HISTORY", "story", "story"),
        ("sqlite:///f.db", "POOL_SIZE", "3", 3),
        ("sqlite:///f.db", "LOCK_TIMEOUT", "3", 3.0),
        ("sqlite:///f.db", "CREATE", "true", True),
        ("sqlite:///f.db", "SYNCHRONOUS", "normal", "normal"),
    ],
)
def test_an_option_of_the_environment_is_read_as_in_a_url(
    url: str, option: str, text: str, value: object
) -> None:
    env = {"MILLSTREAM_CONNECTIONS__X__URL": url, f"MILLSTREAM_CONNECTIONS__X__{option}": text}
    found = load_settings(environ=env).connections["x"].options
    assert found == {option.lower(): value}
    assert type(found[option.lower()]) is type(value)


@pytest.mark.parametrize(
    ("url", "option", "text", "words"),
    [
        (
            "redis://h",
            "MAX_CONNECTIONS",
            "many",
            "max_connections must be a whole number of at least 1, not 'many'",
        ),
        ("redis://h", "KEY_TTL", "soon", "key_ttl must be a number of seconds, more than 0, not 'soon'"),
        ("redis://h", "SOCKET_KEEPALIVE", "maybe", "socket_keepalive must be true or false, not 'maybe'"),
        ("sqlite:///f.db", "POOL_SIZE", "2.5", "pool_size must be a whole number of at least 1, not '2.5'"),
        (
            "sqlite:///f.db",
            "LOCK_TIMEOUT",
            "inf",
            "lock_timeout must be a number of seconds, 0 or more, not inf",
        ),
        (
            "sqlite:///f.db",
            "SYNCHRONOUS",
            "no",
            "synchronous must be 'always' or 'full' or 'normal', not 'no'",
        ),
        ("memory://", "CODEC", "pickle", "'pickle' is not a codec"),
    ],
)
def test_a_wrong_option_of_the_environment_names_the_variable(
    url: str, option: str, text: str, words: str
) -> None:
    variable = f"MILLSTREAM_CONNECTIONS__X__{option}"
    with pytest.raises(ConfigurationError, match=f"^{variable}: connection 'x': {words}"):
        load_settings(environ={"MILLSTREAM_CONNECTIONS__X__URL": url, variable: text})


def test_a_variable_means_a_connection_in_any_capitals() -> None:
    write('default = "Main"\n[connections.Main]\nurl = "memory://"\nprefix = "shop"')
    env = {
        "MILLSTREAM_CONNECTIONS__MAIN__URL": "redis://two",
        "MILLSTREAM_CONNECTIONS__Other__URL": "memory://",
    }
    settings = load_settings(environ=env)
    assert sorted(settings.connections) == ["Main", "other"]
    assert settings.connections["Main"].url == "redis://two"
    assert settings.connections["Main"].options == {"prefix": "shop"}


def test_a_variable_that_could_mean_two_connections_is_refused() -> None:
    write('[connections.Main]\nurl = "memory://"\n[connections.main]\nurl = "memory://"')
    assert sorted(load_settings(environ={}).connections) == ["Main", "main"]
    with pytest.raises(ConfigurationError, match=r"MAIN__URL could mean each of the connections Main, main"):
        load_settings(environ={"MILLSTREAM_CONNECTIONS__MAIN__URL": "redis://x"})


def test_the_environment_alone() -> None:
    assert load_settings(environ={"MILLSTREAM_URL": "redis://x"}).connections["default"].url == "redis://x"
    settings = load_settings(environ={"MILLSTREAM_CONNECTIONS__MAIN__URL": "memory://"})
    assert settings.default == "main"


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"MILLSTREAM_CONNECTIONS__MAIN": "x"}, r"MILLSTREAM_CONNECTIONS__MAIN: expected a form such as"),
        ({"MILLSTREAM_CONNECTIONS__MAIN__URL": "ftp://x"}, r"MILLSTREAM_CONNECTIONS__MAIN__URL: .*'ftp'"),
        (
            {"MILLSTREAM_CONNECTIONS__A__URL": "memory://", "MILLSTREAM_CONNECTIONS__A__NOPE": "1"},
            "unknown queue option 'nope'",
        ),
        (
            {"MILLSTREAM_CONNECTIONS__A__URL": "memory://", "MILLSTREAM_CONNECTIONS__A__MAX_PAYLOAD": "big"},
            "A__MAX_PAYLOAD: connection 'a': max_payload must be a whole number of bytes above 0, not 'big'",
        ),
        ({"MILLSTREAM_CONNECTIONS__A__PREFIX": "x"}, "needs a url"),
        (
            {"MILLSTREAM_DEFAULT": "x", "MILLSTREAM_CONNECTIONS__A__URL": "memory://"},
            "default connection 'x'",
        ),
        ({"MILLSTREAM_URL": "nonsense"}, "not a broker URL"),
    ],
)
def test_mistakes_in_the_environment_name_the_variable(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        load_settings(environ=env)


def test_connect_and_manager_use_the_file() -> None:
    write(
        'default = "b"\n[connections.a]\nurl = "memory://shared-a"\n[connections.b]\nurl = "memory://shared-b"'
    )
    with QueueManager() as manager:
        assert manager.names() == ["a", "b"]
    with connect() as queue:
        assert (queue.name, queue.url) == ("b", "memory://shared-b")
    with connect(prefix="x") as queue:
        assert queue.name == "b"


def test_lines_are_found_in_every_spelling() -> None:
    text = '[a]\nb.c = 1\n\n["a"."d"]\n"e" = 2\n[f]\ng = { h = 1 }\n'
    assert line_of(text, ("a", "b", "c")) == 2
    assert line_of(text, ("a", "d", "e")) == 5
    assert line_of(text, ("f", "g", "h")) == 7
    assert line_of(text, ("a", "missing")) == 1
    assert line_of(text, ("nowhere",)) == 1
