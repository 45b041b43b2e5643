"""Policy servers for tests: replan's in a thread, and one written as openpi's is, around any function."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from replan.eval.remote.server import serve


@contextmanager
def running(service, **options):
    """Runs ``replan serve`` in a thread; the block gets its address."""
    server = serve(service, "127.0.0.1", 0, **options)
    with _in_a_thread(server) as url:
        yield url


@contextmanager
def openpi_style(infer, metadata=None, port=0):
    """Serves a function from observation to answer as openpi's server does, with openpi's own packing.

    A text that it returns is sent as such, and None closes the connection.
    """
    from openpi_client import msgpack_numpy
    from websockets.exceptions import ConnectionClosed
    from websockets.sync.server import serve as listen

    def handle(connection):
        try:
            connection.send(msgpack_numpy.packb(metadata or {}))
            for message in connection:
                answer = infer(msgpack_numpy.unpackb(message))
                if answer is None:
                    return
                connection.send(answer if isinstance(answer, (str, bytes)) else msgpack_numpy.packb(answer))
                if isinstance(answer, str):
                    return
        except ConnectionClosed:
            pass

    with _in_a_thread(listen(handle, "127.0.0.1", port, compression=None, max_size=None)) as url:
        yield url


@contextmanager
def _in_a_thread(server):
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}"
    finally:
        server.shutdown()
        thread.join()
