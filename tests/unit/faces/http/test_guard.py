"""Who is let in over HTTP, and what a browser is told."""

import base64

import pytest

from tests.unit.broker.node import on_a_node
from tests.unit.faces.http.test_app import ask
from tests.unit.faces.http.test_operations import Face
from tidelog.faces.http.app import make_app
from tidelog.faces.http.edge.messages import Headers, Request
from tidelog.faces.http.guard import Guard, name_of_host
from tidelog.faces.http.problems import Problem
from tidelog.faces.http.push import Event, Feed
from tidelog.faces.identities import Identities
from tidelog.operators.tokens import CreateToken, NamedToken, create_token, revoke_token
from tidelog.operators.users import NamedUser, SetUser, remove_user, set_user
from tidelog.security.principals import ANONYMOUS, Principal

ALICE = Principal("User", "alice")
PROVED = {"http_security_protocol": "SASL_PLAINTEXT"}
DAY_MS = 24 * 60 * 60 * 1000


def basic(name="alice", password="pencil"):
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Door:
    """The guard of a node that has one user."""

    def __init__(self, node):
        self.face = Face(node)
        self.face.identities = Identities(node.broker)  # type: ignore[attr-defined]
        self.guard = Guard(self.face)  # type: ignore[arg-type]
        self.clock = node.clock

    async def token(self, **said):
        return await create_token(self.face.desk, CreateToken(user="alice", **said))

    async def enter(self, method="GET", path=b"/v1/topics", by=ANONYMOUS, **headers):
        """Who is believed to ask; the status of a refusal."""
        raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        request = Request(method, path, b"", Headers(raw))
        request.principal = by
        self.asked = request
        try:
            await self.guard.let_in(request)
        except Problem as problem:
            return problem.status
        return request.principal


def at_the_door(story, **settings):
    async def act(node):
        door = Door(node)
        await set_user(door.face.desk, SetUser(user="alice", password="pencil"))
        await story(door)

    on_a_node(act, **settings)


# Who asks.


def test_a_password_says_who_asks_and_a_wrong_one_is_refused():
    async def story(door):
        assert await door.enter() == ANONYMOUS
        assert await door.enter(authorization=basic()) == ALICE
        assert await door.enter(authorization=basic().replace("Basic", "bAsIc")) == ALICE
        for wrong in (basic(password="pen"), basic("bob"), "Basic", "Basic !", "Digest x", ""):
            began = door.clock.monotonic()
            assert await door.enter(authorization=wrong) == 401
            assert door.clock.monotonic() > began

    at_the_door(story)


async def heard(feed, asked):
    """What is told of an event to one who has asked so: cursors and kinds."""
    feed.put([Event(b'{"n":1}', "1")])
    events = await feed.take_for(asked)
    return [(event.cursor, event.kind) for event in events]


def test_a_stream_tells_nothing_more_once_its_proof_has_ended():
    async def story(door):
        token = await door.token()
        proofs = (
            (basic(), lambda: set_user(door.face.desk, SetUser(user="alice", password="crayon"))),
            (f"Bearer {token.token}", lambda: revoke_token(door.face.desk, NamedToken(id=token.id))),
            (basic(password="crayon"), lambda: remove_user(door.face.desk, NamedUser(user="alice"))),
        )
        for proof, end in proofs:
            feed = Feed("0")
            assert await door.enter(authorization=proof) == ALICE
            assert await heard(feed, door.asked) == [("1", "")]

            await end()

            assert [kind for _, kind in await heard(feed, door.asked)] == ["error"]
            assert feed.is_over and await feed.take_for(door.asked) == []
        assert await door.enter() == ANONYMOUS
        assert await heard(Feed("0"), door.asked) == [("1", "")]

    at_the_door(story)


def test_a_token_says_who_asks_until_it_ends():
    async def story(door):
        short, long = await door.token(days=1), await door.token(days=None)
        other = short.token[:-1] + ("A" if short.token[-1] != "A" else "B")

        assert await door.enter(authorization=f"Bearer {short.token}") == ALICE
        assert await door.enter(authorization=f"Bearer {other}") == 401
        door.clock.jump_wall_ms(DAY_MS)
        assert await door.enter(authorization=f"Bearer {short.token}") == 401
        assert await door.enter(authorization=f"Bearer {long.token}") == ALICE
        await revoke_token(door.face.desk, NamedToken(id=long.id))
        assert await door.enter(authorization=f"Bearer {long.token}") == 401

    at_the_door(story)


def test_tokens_end_with_their_user_and_none_is_stored_as_it_is():
    async def story(door):
        made = await door.token()
        image = door.face.broker.image
        assert (
            made.token not in repr(image.tokens) and made.token.encode() not in image.tokens[made.id].digest
        )
        await remove_user(door.face.desk, NamedUser(user="alice"))
        assert image.tokens == {}
        assert await door.enter(authorization=f"Bearer {made.token}") == 401

    at_the_door(story)


def test_where_proof_is_wanted_nobody_else_is_served_but_those_who_ask_for_health():
    async def story(door):
        assert await door.enter() == 401
        assert await door.enter("POST") == 401
        assert await door.enter(path=b"/metrics") == 401
        assert await door.enter(path=b"/health/ready") == ANONYMOUS
        assert await door.enter(authorization=basic()) == ALICE
        assert await door.enter(by=ALICE) == ALICE  # by a certificate

    at_the_door(story, **PROVED)


def test_a_refusal_tells_programs_how_to_ask():
    async def story(node):
        answer = await ask(make_app(Face(node)), "/v1/topics")  # type: ignore[arg-type]
        assert answer.status == 401
        assert answer.headers["www-authenticate"].startswith("Basic ")

    on_a_node(story, **PROVED)


def test_a_verb_that_misses_a_parameter_says_which():
    async def story(node):
        answer = await ask(make_app(Face(node)), "/v1/acls/explain?principal=User:a")  # type: ignore[arg-type]
        assert (answer.status, "'operation'" in answer.json["detail"]) == (400, True)

    on_a_node(story)


# Which page, and by what name.


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("127.0.0.1:8080", None),
        ("[::1]:8080", None),
        ("localhost:8080", None),
        ("tidelog-1:8080", None),
        ("app.localhost", None),
        ("Evil.Example.com:8080", "evil.example.com"),
        ("evil.example.com.", "evil.example.com"),
        ("127.0.0.1.example.com", "127.0.0.1.example.com"),
    ],
)
def test_only_names_with_a_domain_can_have_been_made_to_point_here(host, name):
    assert name_of_host(host.encode()) == name


def test_a_name_that_is_not_the_nodes_own_is_misdirected():
    async def story(door):
        assert await door.enter(host="evil.example.com:8080") == 421
        assert await door.enter("POST", host="evil.example.com", origin="http://evil.example.com") == 421
        for own in ("broker1.example.com:9092", "ui.example.com", "127.0.0.1:8080", "UI.example.com:1"):
            assert await door.enter(host=own) == ANONYMOUS

    at_the_door(story, kafka_advertised="broker1.example.com:9092", http_allowed_hosts="ui.example.com")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "WS"])
def test_pages_of_other_origins_change_nothing(method):
    async def story(door):
        host = "127.0.0.1:8080"
        for refused in (
            {"origin": "http://evil.example.com"},
            {"origin": "null"},
            {"origin": "http://127.0.0.1:9999"},
            {"sec_fetch_site": "cross-site"},
            {"sec_fetch_site": "same-site"},
            {"origin": f"http://{host}", "sec_fetch_site": "cross-site"},
        ):
            assert await door.enter(method, host=host, **refused) == 403, refused
        for taken in (
            {},
            {"origin": f"http://{host}", "sec_fetch_site": "same-origin"},
            {"sec_fetch_site": "none"},
            {"origin": "http://app.example.com", "sec_fetch_site": "cross-site"},
        ):
            assert await door.enter(method, host=host, **taken) == ANONYMOUS, taken
        assert await door.enter("GET", host=host, origin="http://evil.example.com") == ANONYMOUS

    at_the_door(story, http_cors_origins="http://app.example.com")


def test_a_browser_is_told_to_make_nothing_else_of_an_answer():
    async def story(node):
        app = make_app(Face(node))  # type: ignore[arg-type]
        for path in ("/v1/topics", "/nothing", "/docs"):
            headers = (await ask(app, path)).headers
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert "default-src 'none'" in headers["content-security-policy"]

    on_a_node(story)
