"""What Spark, Java and Delta say when something fails, as one line that a person can use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import click

# Whose errors are told in one line. deltalake's are of a module of Rust, which calls itself so.
_THEIRS = frozenset(("pyspark", "py4j", "deltalake", "_internal"))
_OURS = re.compile(r"millstream\.[\w.]+: (?P<message>.*)")
# ": java.sql.SQLException: No suitable driver", below py4j's "An error occurred while calling o33.load."
_JAVA = re.compile(r"(?:: |Caused by: )(?P<kind>[a-z]\w*(?:\.[\w$]+)+)(?:: (?P<message>.*))?")
# What may follow an error and does not belong to it.
_TRACE = re.compile(
    r"\s|$|JVM stacktrace|Driver stacktrace|Caused by|Traceback|During handling|The above exc"
)
_NO_DRIVER = re.compile(r"No suitable driver|ClassNotFoundException: \S*(?:jdbc|Driver)", re.IGNORECASE)
DRIVER_ADVICE = (
    "; Spark has no driver for this database: give its jar with --conf spark.jars=/path/to/driver.jar, or "
    "let Spark fetch it with --conf spark.jars.packages=GROUP:NAME:VERSION, such as "
    "org.postgresql:postgresql:42.7.4"
)


@contextmanager
def plain_failure() -> Iterator[None]:
    """Turn what PySpark or Delta raises into one plain message (exit code 1); other errors pass unchanged.

    A failure inside the data source comes wrapped in a Java error with two stack traces. A person needs its
    last line: what went wrong, and what to do.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[0] not in _THEIRS:
            raise
        raise click.ClickException(plain_message(error)) from error


def plain_message(error: Exception) -> str:
    """The part of such an error that says what is wrong."""
    lines = str(error).strip().splitlines()
    said = _of_ours(lines) or _of_spark(lines) or _of_java(lines)
    return said or (lines[0] if lines else type(error).__name__)


def _of_ours(lines: list[str]) -> str | None:
    """The innermost error of the package, below both stack traces, with the notes that it was given."""
    for at in range(len(lines) - 1, -1, -1):
        if found := _OURS.match(lines[at]):
            notes = []
            for line in lines[at + 1 :]:
                if _TRACE.match(line):
                    break
                notes.append(line.strip())
            return found["message"] + (f" ({'; '.join(notes)})" if notes else "")
    return None


def _of_spark(lines: list[str]) -> str | None:
    """An error that Spark has a name for: ``[TABLE_OR_VIEW_NOT_FOUND] …``."""
    return next((line.rstrip() for line in lines if line.startswith("[")), None)


def _of_java(lines: list[str]) -> str | None:
    """The message of the first Java exception, or its kind where it has none."""
    for line in lines:
        if found := _JAVA.match(line):
            advice = DRIVER_ADVICE if _NO_DRIVER.search(line) else ""
            kind = found["kind"].rpartition(".")[2]
            message = (found["message"] or "").strip()
            # The message of a ClassNotFoundException is a name only.
            said = f"{kind}: {message}" if message and " " not in message else message or kind
            return said + advice
    return None
