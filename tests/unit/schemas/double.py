"""A schema registry in this process: the part of the REST API that clients use, over real HTTP."""

import base64
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class Double:
    """What is registered, and what was asked; `incompatible` refuses every new version."""

    def __init__(self) -> None:
        self.schemas: list[dict] = []
        self.subjects: dict[str, list[int]] = {}
        self.asked: list[str] = []
        self.user_info: str | None = None
        self.incompatible = False
        self.url = ""

    def answer(self, method: str, path: str, body: dict | None) -> tuple[int, dict]:
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["schemas", "ids", number]:
                if not 0 < int(number) <= len(self.schemas):
                    return 404, {"error_code": 40403, "message": "Schema not found"}
                return 200, self.schemas[int(number) - 1]
            case ["subjects", subject, "versions"] if method == "POST":
                assert body is not None
                ids = self.subjects.setdefault(subject, [])
                if body not in self.schemas:
                    if self.incompatible and ids:
                        return 409, {"error_code": 409, "message": "Schema is incompatible"}
                    self.schemas.append(body)
                made = self.schemas.index(body) + 1
                if made not in ids:
                    ids.append(made)
                return 200, {"id": made}
            case ["subjects", subject, "versions", version]:
                ids = self.subjects.get(subject, [])
                at = len(ids) if version == "latest" else int(version)
                if not 0 < at <= len(ids):
                    return 404, {"error_code": 40401, "message": "Subject not found"}
                schema = self.schemas[ids[at - 1] - 1]
                return 200, {"subject": subject, "id": ids[at - 1], "version": at, **schema}
        return 404, {"error_code": 404, "message": "no such path"}


@contextmanager
def registry_double():
    double = Double()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(None)

        def do_POST(self):
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body):
            path = urlsplit(self.path).path
            double.asked.append(f"{self.command} {path}")
            status, document = double.answer(self.command, path, body)
            if double.user_info is not None:
                wanted = "Basic " + base64.b64encode(double.user_info.encode()).decode()
                if self.headers.get("Authorization") != wanted:
                    status, document = 401, {"message": "Unauthorized"}
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    double.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield double
    finally:
        server.shutdown()
        server.server_close()
