"""Calls that survive a lost connection, where surviving it is honest.

A call that the server cannot have executed is repeated, whatever it is. One whose reply was lost is
repeated only if a second execution does no harm; otherwise it ends with OutcomeUnknown.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from redis.exceptions import NoScriptError

from millstream.brokers.redis.failures import FAILURES, ReplyLost, had_no_effect, translate
from millstream.brokers.redis.link import Argument, Link
from millstream.brokers.redis.scripts import Script
from millstream.errors import BrokerClosed, BrokerUnavailable

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
Call = tuple[tuple[str, ...], tuple[Argument, ...]]  # the keys and arguments of a script


class Caller:
    """Sends commands and scripts over a link, and repeats them for ``retry_for`` seconds."""

    def __init__(self, link: Link, retry_for: float) -> None:
        self.link = link
        self.retry_for = retry_for
        self._exchange = link.exchange
        self._closed = threading.Event()
        self.closed = False

    def call(self, key: str, *args: Argument, repeat: bool = True, timeout: float | None = None) -> Any:
        """The answer to a command on ``key``. ``repeat`` says that executing it twice does no harm."""
        if self.closed:
            raise BrokerClosed
        try:
            return self._exchange(key, args, timeout, not repeat)
        except FAILURES as error:
            return self._settle(error, key, args, repeat, timeout)

    def script(self, script: Script, keys: tuple[str, ...], *args: Argument, repeat: bool = True) -> Any:
        """What a script returns."""
        if self.closed:
            raise BrokerClosed
        command: tuple[Argument, ...] = ("EVALSHA", script.digest, len(keys), *keys, *args)
        # The script cache is volatile (SCRIPT FLUSH, a restart, a failover), so a script may have to be
        # loaded at any call. An unknown script executed nothing.
        for _ in range(3):
            try:
                return self._exchange(keys[0], command, None, not repeat)
            except NoScriptError:
                self.call(keys[0], "SCRIPT", "LOAD", script.source)
            except FAILURES as error:
                try:
                    return self._settle(error, keys[0], command, repeat, None)
                except _ScriptGone:
                    self.call(keys[0], "SCRIPT", "LOAD", script.source)
        raise BrokerUnavailable(
            f"the server at {self.link.address} forgets its scripts as soon as they are loaded"
        )

    def scripts(self, script: Script, calls: Iterable[Call]) -> Iterator[Any]:
        """What a script returns to each of many calls, given by their keys and arguments.

        A call is made and sent while the server works at the one before. The calls must be such that
        executing them twice does no harm, and their first keys must be in one place.
        """
        left = iter(calls)
        while first := next(left, None):
            if self.closed:
                raise BrokerClosed
            commands = _Commands(script, chain((first,), left))
            unanswered, late = commands.unanswered, deque[Any]()
            try:
                for answer in self.link.ahead(first[0][0], commands):
                    if commands.stopped or isinstance(answer, Exception):
                        # What was refused is made again before anything else is sent: the order stays.
                        commands.stopped = True
                        late.append(answer)
                    else:
                        yield answer
                        unanswered.popleft()
            except FAILURES:
                pass  # what was not answered is called again
            while unanswered:
                again = not late or isinstance(late[0], Exception)
                yield self._again(script, *unanswered[0]) if again else late[0]
                unanswered.popleft()
                if late:
                    late.popleft()

    def _again(self, script: Script, keys: tuple[str, ...], args: tuple[Argument, ...]) -> Any:
        """Call a script the usual way, which survives a failure or says what it means."""
        return self.script(script, keys, *args)

    def stop(self) -> None:
        """Refuse every later call. The link stays open for others."""
        self.closed = True
        self._closed.set()

    def close(self) -> None:
        self.stop()
        self.link.close()

    def pause(self, seconds: float) -> None:
        """Wait, but not past close()."""
        self._closed.wait(seconds)

    def _settle(
        self,
        error: BaseException,
        key: str,
        args: tuple[Argument, ...],
        repeat: bool,
        timeout: float | None,
    ) -> Any:
        """Repeat a failed call while that is right, or raise what its failure means."""
        deadline = time.monotonic() + self.retry_for
        pause = FIRST_PAUSE
        while True:
            if self.closed:
                raise BrokerClosed from error
            lost = isinstance(error, ReplyLost)
            if not (had_no_effect(error) or (lost and repeat)):
                if isinstance(error, NoScriptError):
                    raise _ScriptGone from error
                raise translate(error, self.link.address, key) from (error.__cause__ or error)
            if time.monotonic() + pause > deadline:
                if lost:
                    # Harmless to repeat, so its outcome does not matter: it can be called again later.
                    raise BrokerUnavailable(
                        f"the connection to {self.link.address} was lost and did not come back within "
                        f"{self.retry_for:g} s ({error.__cause__}); repeating the call later is safe"
                    ) from error.__cause__
                raise translate(error, self.link.address, key) from (error.__cause__ or error)
            self.pause(pause)
            pause = min(pause * 2, LONGEST_PAUSE)
            try:
                return self._exchange(key, args, timeout)
            except FAILURES as again:
                error = again


class _Commands:
    """The commands that call a script, until it is told to stop. It knows which have been asked for."""

    def __init__(self, script: Script, calls: Iterable[Call]) -> None:
        self._digest, self._calls = script.digest, iter(calls)
        self.unanswered: deque[Call] = deque()
        self.stopped = False

    def __iter__(self) -> Iterator[tuple[Argument, ...]]:
        while not self.stopped and (call := next(self._calls, None)):
            self.unanswered.append(call)
            keys, args = call
            yield ("EVALSHA", self._digest, len(keys), *keys, *args)


class _ScriptGone(Exception):
    """A repeated script call found a server that does not know the script."""
