"""Keep Spark's chatter off the screen: a log configuration of its own, and a filter for what Java and the
Python workers say by themselves.

Errors still appear. Only lines that are known to be no news are dropped, and only from the JVM that
`session` started; a session that somebody else made is left as it is, and one whose caller asked for a log
level shows everything.
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from millstream.spark.java import write_whole

LOG4J = """status = error
rootLogger.level = {level}
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{{HH:mm:ss}} spark %p %c{{1}}: %m%n%ex
"""
# What Spark logs of a failure that it also raises, each with two stack traces of its own.
RAISED_TOO = (
    "Aborting task",
    "Abort(ing|ed) commit for partition .*",
    "Exception in task .*",
    "Task .* in stage .* failed .* times; aborting job",
    "Data source write support .* abort(ing|ed)[.]",
    "Query .* terminated with error",
)
WITHOUT_RAISED = f"""appender.stderr.filter.raised.type = RegexFilter
appender.stderr.filter.raised.regex = (?s)({"|".join(RAISED_TOO)})
appender.stderr.filter.raised.onMatch = DENY
appender.stderr.filter.raised.onMismatch = NEUTRAL
"""
# Loggers of PySpark, not of Java: they write an error of a query as a line of JSON before it is raised.
QUERY_LOGGERS = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
LEVELS = ("ALL", "TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL", "OFF")

# What the Java runtime prints on every start of Spark, before any logging is set up: nobody can act on it.
NOISE = tuple(
    text.encode()
    for text in (
        "WARNING: Using incubator modules: ",
        "WARNING: package sun.security.action not in ",
        "WARNING: A restricted method in ",
        "WARNING: A terminally deprecated method in ",
        "WARNING: java.lang.System::",
        "WARNING: sun.misc.Unsafe",
        "WARNING: Use --enable-native-access",
        "WARNING: Restricted methods will be blocked",
        "WARNING: Please consider reporting this to ",
        "Using Spark's default log4j profile: ",
        "Setting default log level to ",
        "To adjust logging level use ",
        "Setting Spark log level to ",
    )
)
# What the Python worker of a projection prints at each step, with an empty line after it.
SPACED_NOISE = (
    b"Starting Streaming TransformWithStateInPandas Python worker",
    b"Streaming TransformWithStateInPandas Python worker ",
)
_TRACEBACK = b"Traceback (most recent call last):"
_BEGINS = (*NOISE, *SPACED_NOISE, _TRACEBACK)
# How a Python worker ends whose rows nobody wanted any more, as those behind a limit.
_GONE = (b"BrokenPipeError: ", b"ConnectionResetError: ")
_STDERR = 2


def log_options(level: str, cache: Path, *, failures: bool = True) -> list[str]:
    """JVM options for a log at ``level``, from its very first line.

    ``failures`` says whether it has those that Spark raises as well. A file by a system property, not a
    configuration folder: that one would be on the class path, and a class archive refuses to be used with a
    folder there.
    """
    path = cache / f"log4j2-{level.lower()}{'' if failures else '-raised'}.properties"
    write_whole(path, LOG4J.format(level=level.lower()) + ("" if failures else WITHOUT_RAISED))
    return [f"-Dlog4j2.configurationFile={path.as_uri()}"]


def silence_query_errors() -> None:
    """Let PySpark raise an error of a query without also writing it to standard error."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - an extra

    for name in QUERY_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


class LineFilter:
    """Drops what is known to be no news from a flow of bytes; the rest passes unchanged.

    That is: lines that begin with a text of NOISE or SPACED_NOISE, and the traceback of a worker whose
    reader has gone.
    """

    def __init__(self) -> None:
        self._held = b""  # the begin of a line that may yet turn out to be noise
        self._trace: list[bytes] = []  # the lines of a traceback whose end has not come yet
        self._was_spaced = False  # the line before was one that an empty line follows

    def feed(self, chunk: bytes) -> bytes:
        """What of ``chunk`` (and of what was held back) may be shown now."""
        lines = (self._held + chunk).splitlines(keepends=True)
        self._held = b""
        if lines and not lines[-1].endswith(b"\n") and self._is_unsure(lines[-1]):
            self._held = lines.pop()
        return b"".join(map(self._passed, lines))

    def rest(self) -> bytes:
        """What was held back and will not be completed."""
        known = self._held.startswith((*NOISE, *SPACED_NOISE))
        held = b"".join(self._trace) + (b"" if known else self._held)
        self._held, self._trace = b"", []
        return held

    def _is_unsure(self, begin: bytes) -> bool:
        """Whether a line that begins so cannot be judged before it is whole."""
        return bool(self._trace) or any(begin.startswith(text) or text.startswith(begin) for text in _BEGINS)

    def _passed(self, line: bytes) -> bytes:
        """What may be shown now that ``line`` has come."""
        was_spaced, self._was_spaced = self._was_spaced, line.startswith(SPACED_NOISE)
        if self._trace:
            return self._in_trace(line)
        if line.startswith(_TRACEBACK):
            self._trace = [line]
            return b""
        dropped = line.startswith(NOISE) or self._was_spaced or (was_spaced and not line.strip())
        return b"" if dropped else line

    def _in_trace(self, line: bytes) -> bytes:
        self._trace.append(line)
        if line.startswith(b" "):
            return b""
        whole, self._trace = self._trace, []
        frames = [each for each in whole if each.startswith(b"  File ")]
        is_known = line.startswith(_GONE) and all(b"/pyspark/daemon.py" in frame for frame in frames)
        return b"" if is_known else b"".join(whole)


class StderrFilter:
    """Stands between a child process and our standard error: give ``writing`` to the child as its own."""

    def __init__(self) -> None:
        self._reading, self.writing = os.pipe()
        threading.Thread(target=self._pump, name="millstream-spark-stderr", daemon=True).start()

    def started(self) -> None:
        """The child has its copy: close ours, so that the end of the child ends the thread."""
        os.close(self.writing)

    def _pump(self) -> None:
        lines = LineFilter()
        try:
            while chunk := os.read(self._reading, 65536):
                self._show(lines.feed(chunk))
            self._show(lines.rest())
        except OSError:  # nobody reads our standard error any more; the child must not wait for it
            while os.read(self._reading, 65536):
                pass
        finally:
            os.close(self._reading)

    @staticmethod
    def _show(data: bytes) -> None:
        while data:
            data = data[os.write(_STDERR, data) :]
