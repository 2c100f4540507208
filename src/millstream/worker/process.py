"""One worker process: ``python -m millstream.worker.process``, as the launcher starts it.

It says "ready" on the socket it was given, and ends when the other side of that socket is gone: a
supervisor that was killed leaves no workers behind.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import AccessDenied, BrokerUnavailable, ConfigurationError
from millstream.worker.options import EXIT_CONFIG, EXIT_CRASHED, WorkerOptions
from millstream.worker.worker import Worker, WorkerCrashed

if TYPE_CHECKING:
    from millstream.queue import Queue

READY = b"ready\n"


class Orders(msgspec.Struct, frozen=True):
    """What the launcher tells a process, as JSON on its command line."""

    target: str
    options: WorkerOptions
    socket: int
    connection: str | None = None
    log_level: str = "INFO"


def load_target(target: str, connection: str | None = None) -> Queue:
    """The queue that ``module:name`` means. Raises ConfigurationError, which says what is wrong with it.

    BrokerUnavailable, where the module connects and the broker does not answer, passes through.
    """
    from millstream.queue import Queue, QueueManager  # noqa: PLC0415 - it imports this package

    module_name, colon, attribute = target.partition(":")
    if not (module_name and colon and attribute):
        raise ConfigurationError(f"{target!r} is not a target; expected module:name, such as app:queue")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: object = importlib.import_module(module_name)
    except BrokerUnavailable:
        raise  # nothing is wrong with the target: it may work in a moment
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module_name, module_name.split(".")[0]):
            raise ConfigurationError(
                f"there is no module {module_name!r} (for the target {target!r}); it is looked for in the "
                "current folder and in PYTHONPATH"
            ) from error
        where = "".join(traceback.format_exception(error)).rstrip()
        raise ConfigurationError(f"the module {module_name!r} does not import:\n{where}") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"{module_name!r} has no {attribute!r} (for the target {target!r})")
        found = getattr(found, name)
    if callable(found) and not isinstance(found, Queue | QueueManager):
        found = _made_by(found, target)
    if isinstance(found, QueueManager):
        return found.connection(connection)
    if not isinstance(found, Queue):
        raise ConfigurationError(
            f"{target!r} is {type(found).__name__}, not a Queue; write queue = millstream.connect(...) in "
            f"{module_name} and name that"
        )
    if connection is not None:
        raise ConfigurationError(
            f"{target!r} is one queue, so that connection {connection!r} cannot be chosen"
        )
    return found


def _made_by(factory: Callable[[], object], target: str) -> object:
    try:
        return factory()
    except (BrokerUnavailable, ConfigurationError):
        raise  # the first may pass, and the other says what to do
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]  # in the user's own code, most of the time
        raise ConfigurationError(
            f"the function {target!r} made no queue: {type(error).__name__}: {error} "
            f"({place.filename}, line {place.lineno})"
        ) from error


def configure_logging(level: str) -> None:
    """Log to stderr, with the process; nothing where the application has configured logging itself."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s [%(process)d] %(name)s: %(message)s")


def main(argument: str) -> int:
    orders = msgspec.json.decode(argument, type=Orders)
    configure_logging(orders.log_level)
    try:
        queue = load_target(orders.target, orders.connection)
        if not queue.driver.capabilities.shared:
            raise ConfigurationError(
                f"{orders.target!r} lives in the memory of one process, where another finds nothing; "
                "use a broker such as redis://, or run the worker inside the program with queue.worker()"
            )
        worker = Worker(queue, orders.options, supervisor=orders.socket)
    except (ConfigurationError, AccessDenied) as error:
        sys.stderr.write(f"millstream worker: {error}\n")
        return EXIT_CONFIG
    except BrokerUnavailable as error:
        sys.stderr.write(f"millstream worker: {orders.target!r} cannot reach its broker: {error}\n")
        return EXIT_CRASHED
    # What was imported stays: without it the collector looks through all of it again and again.
    gc.collect()
    gc.freeze()
    os.write(orders.socket, READY)
    try:
        return worker.run()
    except WorkerCrashed as error:
        logging.getLogger("millstream.worker").critical("%s", error)
        return EXIT_CRASHED


if __name__ == "__main__":
    code = main(sys.argv[1])
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # not sys.exit: a handler's thread that hangs would keep the process for ever
