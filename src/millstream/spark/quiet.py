"""Keep Spark's start off the screen: a log configuration of its own, and a filter for what Java itself says.

Errors still appear. Only lines that are known to be no news are dropped, and only from the JVM that
`session` started; a session that somebody else made is left as it is.
"""

from __future__ import annotations

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
_LONGEST = max(map(len, NOISE))
_STDERR = 2


def log_options(level: str, cache: Path) -> list[str]:
    """JVM options for a log at ``level``, from its very first line.

    A file by a system property, not a configuration folder: that one would be on the class path, and a
    class archive refuses to be used with a folder there.
    """
    path = cache / f"log4j2-{level.lower()}.properties"
    write_whole(path, LOG4J.format(level=level.lower()))
    return [f"-Dlog4j2.configurationFile={path.as_uri()}"]


class LineFilter:
    """Drops lines that begin with a text of NOISE from a flow of bytes; the rest passes unchanged."""

    def __init__(self) -> None:
        self._held = b""  # the begin of a line that may yet turn out to be noise
        self._dropping = False

    def feed(self, chunk: bytes) -> bytes:
        """What of ``chunk`` (and of what was held back) may be shown now."""
        passed = []
        data, self._held = self._held + chunk, b""
        for line in data.splitlines(keepends=True):
            if self._dropping or line.startswith(NOISE):
                self._dropping = not line.endswith(b"\n")
            elif not line.endswith(b"\n") and any(text.startswith(line[:_LONGEST]) for text in NOISE):
                self._held = line
            else:
                passed.append(line)
        return b"".join(passed)

    def rest(self) -> bytes:
        """What was held back and will not be completed."""
        held, self._held = self._held, b""
        return held


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
