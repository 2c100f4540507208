"""A TCP proxy that breaks connections on demand, and counts each fault that fired."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter
from typing import Self

_CHUNK = 65536


class TcpProxy:
    """Stands between a client and the server at ``target_port``.

    The faults that ask for one event (`drop_next_reply`, `cut_replies_after`) disarm themselves when they
    have fired; the states (`refuse`, `blackhole`, `latency`) last until `heal`. ``faults`` counts
    by name: dropped_replies, cut_replies, resets, blackholed_bytes, delayed_chunks, refusing.
    """

    def __init__(self, target_port: int, target_host: str = "127.0.0.1") -> None:
        self.target = (target_host, target_port)
        self.port = 0
        self.faults: Counter[str] = Counter()
        self.connections = 0  # accepted so far
        self.fired = threading.Event()  # set by the first fault of one event after it was armed
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._links: set[_Link] = set()
        self._closed = False
        self._reply_budget: int | None = None  # bytes of reply that still pass before the cut
        self._budget_matching: bytes | None = None  # only on a link whose request held these bytes
        self._blackhole = False
        self._latency = 0.0
        self._unblocked = threading.Event()

    # -- faults ------------------------------------------------------------------------------------

    def drop_next_reply(self, matching: bytes | None = None) -> None:
        """Let the next request through, swallow its reply and reset the connection.

        With ``matching`` it is the next request that holds these bytes, whichever connection sends it.
        """
        self.cut_replies_after(0, matching)

    def cut_replies_after(self, n_bytes: int, matching: bytes | None = None) -> None:
        """Pass ``n_bytes`` of the next replies and reset that connection."""
        with self._lock:
            self.fired.clear()
            self._reply_budget, self._budget_matching = n_bytes, matching
            for link in self._links:
                link.marked = False

    def reset_all(self) -> int:
        """Reset every open connection now; how many there were."""
        with self._lock:
            links = list(self._links)
            self.faults["resets"] += len(links)
        for link in links:
            link.close()
        return len(links)

    def refuse(self) -> None:
        """Nobody listens any more: new connections are refused, open ones are reset."""
        self.faults["refusing"] += 1
        self._close_listener()
        self.reset_all()

    def blackhole(self) -> None:
        """Connections stay open, nothing passes: what a dropped network looks like."""
        with self._lock:
            self._blackhole = True

    def latency(self, seconds: float) -> None:
        """Delay each chunk of a reply."""
        self._latency = seconds

    def heal(self) -> None:
        """End every fault. A connection that lost bytes in the blackhole is reset."""
        with self._lock:
            self._blackhole = False
            self._reply_budget = self._budget_matching = None
            self._latency = 0.0
            torn = [link for link in self._links if link.torn]
        for link in torn:
            link.close()
        if self._listener is None and not self._closed:
            self._listen()

    # -- life --------------------------------------------------------------------------------------

    def start(self) -> Self:
        self._listen()
        return self

    def stop(self) -> None:
        self._closed = True
        self._close_listener()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    def _listen(self) -> None:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", self.port))
        listener.listen(256)
        self.port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _close_listener(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept(); close() alone would not
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                upstream = socket.create_connection(self.target, timeout=5)
                upstream.settimeout(None)
            except OSError:
                _reset(client)
                continue
            link = _Link(self, client, upstream)
            with self._lock:
                self.connections += 1
                self._links.add(link)
            link.start()

    # -- what passes -------------------------------------------------------------------------------

    def _pass_request(self, link: _Link, chunk: bytes) -> bytes | None:
        """What goes on to the server; None swallows it."""
        with self._lock:
            if self._blackhole:
                self.faults["blackholed_bytes"] += len(chunk)
                link.torn = True
                return None
            if self._budget_matching is not None and self._budget_matching.lower() in chunk.lower():
                link.marked = True
        return chunk

    def _pass_reply(self, link: _Link, chunk: bytes) -> tuple[bytes, bool]:
        """What goes on to the client, and whether the connection ends after it."""
        delay = self._latency
        if delay:
            self.faults["delayed_chunks"] += 1
            threading.Event().wait(delay)
        with self._lock:
            if self._blackhole:
                self.faults["blackholed_bytes"] += len(chunk)
                link.torn = True
                return b"", False
            budget = self._reply_budget
            if budget is None or (self._budget_matching is not None and not link.marked):
                return chunk, False
            if budget and len(chunk) < budget:
                self._reply_budget = budget - len(chunk)
                return chunk, False
            self._reply_budget = self._budget_matching = None
            self.faults["cut_replies" if budget else "dropped_replies"] += 1
            self.fired.set()
            return chunk[:budget], True

    def _gone(self, link: _Link) -> None:
        with self._lock:
            self._links.discard(link)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Link:
    """One client connection and its connection to the server, with a thread for each direction."""

    def __init__(self, proxy: TcpProxy, client: socket.socket, upstream: socket.socket) -> None:
        self.proxy, self.client, self.upstream = proxy, client, upstream
        self.marked = False  # its request matched, so the armed fault is for its reply
        self.torn = False  # bytes were swallowed: the two ends no longer agree
        self._close_lock = threading.Lock()
        self._open = True
        self._pumps = [threading.Thread(target=pump, daemon=True) for pump in (self._requests, self._replies)]
        for end in (client, upstream):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for pump in self._pumps:
            pump.start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self.client.recv(_CHUNK):
                passed = self.proxy._pass_request(self, chunk)
                if passed:
                    self.upstream.sendall(passed)
        self.close()

    def _replies(self) -> None:
        with contextlib.suppress(OSError):
            while chunk := self.upstream.recv(_CHUNK):
                passed, ends = self.proxy._pass_reply(self, chunk)
                if passed:
                    self.client.sendall(passed)
                if ends:
                    break
        self.close()

    def close(self) -> None:
        """Reset both ends, and return when both have been told."""
        with self._close_lock:
            if not self._open:
                return
            self._open = False
        for end in (self.client, self.upstream):
            _reset(end)
        for pump in self._pumps:
            # A socket is not closed before the last call that uses it has returned: until the thread inside
            # recv() has had its turn, nothing is sent, and a client would still find its connection sound.
            if pump.is_alive() and pump is not threading.current_thread():
                pump.join(5)
        self.proxy._gone(self)


def _reset(end: socket.socket) -> None:
    """Close at once with a reset; shutdown first, so that a thread inside recv() wakes."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RD)
    with contextlib.suppress(OSError):
        end.close()
