"""`GET /docs`: a page that shows the description to people, and lets them try it.

Rule 1: the page is one file of ours and asks only the node it came from: it works without a way to
        the outside, and nothing from there can work in it. The header says so to the browser.
Rule 2: what it shows it puts in as text: a topic whose name is markup is a topic.
"""

import base64
import hashlib
import re
from functools import lru_cache
from importlib import resources
from typing import Final

from tidelog.faces.http.api import Call, Operation, tagged
from tidelog.faces.http.edge.messages import HTML, Response
from tidelog.faces.http.permissions import FREE


async def show_docs(call: Call) -> Response:
    page, policy = await call.broker.host.offload.run(read_page)
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "cache-control": "no-cache",
    }
    return Response(page, media_type=HTML, headers=headers)


@lru_cache(maxsize=1)
def read_page() -> tuple[bytes, str]:
    """The page, and what a browser may do with it."""
    page = resources.files(__package__).joinpath("docs.html").read_bytes()
    return page, (
        "default-src 'none'; connect-src 'self'; img-src data:; form-action 'none'; "
        "base-uri 'none'; frame-ancestors 'none'; "
        f"script-src {_sum(page, b'script')}; style-src {_sum(page, b'style')}"
    )


def _sum(page: bytes, element: bytes) -> str:
    """What is in the page's only element of this name, as a policy names it."""
    (found,) = re.findall(rb"<%b>(.*?)</%b>" % (element, element), page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(found).digest()).decode()}'"


OPERATIONS: Final = tagged(
    "description",
    Operation(
        "GET",
        "/docs",
        show_docs,
        "Show this description as a page.",
        needs_cluster=False,
        media_type=HTML,
        is_hidden=True,
        needs=FREE,
    ),
)
