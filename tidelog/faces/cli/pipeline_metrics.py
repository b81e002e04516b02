"""How far a running pipeline is, as a page for Prometheus.

Rule 1: the page is made when it is asked for, of what was told last. Nothing of it is kept.
Rule 2: a query that has said nothing of a number yet has no line for it: 0 would be an answer.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final

from tidelog.faces.cli.common import UserError
from tidelog.faces.exposition import METRICS_TYPE, Page, labels

if TYPE_CHECKING:
    from tidelog.spark.pipelines.progress import QueryState
    from tidelog.spark.pipelines.state import Run

PATH: Final = "/metrics"
ASK_SECONDS_MAX: Final = 10.0
PARTS: Final = "triggerExecution"
"""The whole of a batch, among its parts."""


def metrics_text(pipeline: str, run: "Run", before: "Run") -> str:
    """What is known of a run; `before` is how the one before it ended."""
    page = Page()
    of_all = labels(pipeline=pipeline)

    def of_each(
        number: "Callable[[QueryState], object]", *, once_it_ran: bool = True
    ) -> list[tuple[str, object]]:
        return [
            (labels(pipeline=pipeline, query=name), value)
            for name, state in run.queries.items()
            if (state.at or not once_it_ran) and (value := number(state)) is not None
        ]

    page.family(
        "pipeline_info",
        "gauge",
        "1; what the pipeline is about is a label.",
        [(labels(pipeline=pipeline, phase=run.phase, master=run.master, trigger=run.trigger), 1)],
    )
    page.family(
        "pipeline_began_seconds",
        "gauge",
        "When this run began, in seconds since 1970.",
        [(of_all, run.began)],
    )
    page.family(
        "pipeline_rows_total",
        "counter",
        "Rows taken in since this run began.",
        of_each(lambda state: state.rows, once_it_ran=False),
    )
    page.family(
        "pipeline_rows_per_second",
        "gauge",
        "How fast the last batch with rows was.",
        of_each(lambda state: state.rows_per_second),
    )
    page.family(
        "pipeline_lag_offsets",
        "gauge",
        "Offsets that topics had and the query had not read when its last batch was planned, to "
        "the high watermarks.",
        of_each(lambda state: state.lag),
    )
    page.family(
        "pipeline_lag_offsets_max",
        "gauge",
        "The same of the partition that is farthest behind.",
        of_each(lambda state: None if state.behind is None else state.behind.most),
    )
    page.family(
        "pipeline_state_rows", "gauge", "Rows kept between batches.", of_each(lambda state: state.state_rows)
    )
    page.family(
        "pipeline_late_rows_total",
        "counter",
        "Rows dropped because they came too late.",
        of_each(lambda state: state.late_rows, once_it_ran=False),
    )
    page.family(
        "pipeline_batch", "gauge", "The number of the last batch.", of_each(lambda state: state.batch)
    )
    page.family(
        "pipeline_batch_at_seconds",
        "gauge",
        "When that began, in seconds since 1970.",
        of_each(lambda state: _seconds(state.at)),
    )
    page.family(
        "pipeline_batch_seconds",
        "gauge",
        f"How long the last batch took, by Spark's parts; {PARTS} is the whole.",
        [
            (labels(pipeline=pipeline, query=name, part=part), ms / 1000)
            for name, state in run.queries.items()
            for part, ms in sorted(state.durations_ms.items())
        ],
    )
    page.family(
        "pipeline_watermark_seconds",
        "gauge",
        "Rows of an earlier event time than this come too late, in seconds since 1970.",
        of_each(lambda state: _seconds(state.watermark)),
    )
    failed = run if run.problem else before
    page.family(
        "pipeline_last_error_seconds",
        "gauge",
        "When a run of this pipeline failed last, in seconds since 1970; the error is a label.",
        [(labels(pipeline=pipeline, error=failed.problem), failed.changed)] if failed.problem else [],
    )
    return page.text


def _seconds(text: str | None) -> float | None:
    """2026-01-01T12:30:00.000Z in seconds since 1970; Spark begins there, and knows nothing."""
    if not text or text.startswith("1970"):
        return None
    return datetime.fromisoformat(text).timestamp()


@contextmanager
def served(host: str, port: int, page: Callable[[], str]) -> Iterator[int]:
    """Answer GET /metrics with the page while inside; the port, also if any may be taken (0)."""

    class Handler(BaseHTTPRequestHandler):
        timeout = ASK_SECONDS_MAX

        def do_GET(self) -> None:
            found = self.path.partition("?")[0] == PATH
            text = page() if found else f"see {PATH}\n"
            body = text.encode()
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", METRICS_TYPE if found else "text/plain")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """A command's output is the command's."""

    try:
        server = ThreadingHTTPServer((host, port), Handler)
    except OSError as error:
        raise UserError(f"--metrics-port {port}: {host}:{port} cannot be taken: {error}") from None
    server.daemon_threads = True
    with server:
        thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()
