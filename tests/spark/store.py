"""An object store and a catalog (S3 and Glue, by moto) in a process of their own.

Commands come on standard input: `down` closes the port, as a server does that has died, and `up`
opens it again with all that was there. Each is answered by the same line.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

HOST: Final = "127.0.0.1"
BUCKET: Final = "lake"
KEYS: Final = {"access-key-id": "key", "secret-access-key": "secret", "region": "us-east-1"}


class Store:
    """A running store with one bucket."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.address = f"{HOST}:{self._told()}"

    @property
    def s3(self) -> dict[str, str]:
        """What pyiceberg is told of the store."""
        return {"s3.endpoint": f"http://{self.address}"} | _keys("s3")

    @property
    def glue(self) -> dict[str, str]:
        """The same of the catalog, and of the store with it."""
        catalog = {"type": "glue", "glue.endpoint": f"http://{self.address}", "warehouse": f"s3://{BUCKET}/w"}
        return catalog | _keys("glue") | self.s3

    def down(self) -> None:
        self._ask("down")

    def up(self) -> None:
        self._ask("up")

    def _ask(self, command: str) -> None:
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._told() == command

    def _told(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def _keys(prefix: str) -> dict[str, str]:
    return {f"{prefix}.{name}": value for name, value in KEYS.items()}


@contextmanager
def store() -> Iterator[Store]:
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Store(process)
    finally:
        process.kill()
        process.communicate()


def _serve() -> None:
    import logging

    from moto.backends import get_backend
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import BaseWSGIServer, make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = DomainDispatcherApplication(create_backend_app)

    def start(port: int) -> BaseWSGIServer:
        server = make_server(HOST, port, app, threaded=True)
        server.daemon_threads = True  # type: ignore[attr-defined]
        server.block_on_close = False  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    get_backend("s3")["123456789012"]["aws"].create_bucket(BUCKET, KEYS["region"])
    server = start(0)
    port = server.port
    print(port, flush=True)
    for line in sys.stdin:
        if line.strip() == "down":
            server.shutdown()
            server.server_close()
        else:
            server = start(port)
        print(line.strip(), flush=True)


if __name__ == "__main__":
    _serve()
