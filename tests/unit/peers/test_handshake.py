"""Two nodes prove to each other that they have the cluster's secret; others prove nothing."""

import msgspec
import pytest

from tidelog.peers.handshake import NONCE_BYTES, Dialer, Doorkeeper, Ends, NotProved, Seals
from tidelog.peers.wire import PROTOCOL, SEAL_BYTES, Challenge, Greeting, Hello, Welcome
from tidelog.security.secrets import Secret

OURS, THEIRS = Secret([b"o" * 32]), Secret([b"t" * 32])
HELLO = Hello(protocol=PROTOCOL, cluster="ours", node=1, directory="one", wanted=2)
WELCOME = Welcome(cluster="ours", node=2, directory="two")
HERE, THERE = "127.0.0.1 40000", "127.0.0.1 9192"


def nonce(number: int) -> bytes:
    return bytes([number]) * NONCE_BYTES


def dial(secret: Secret = OURS, number: int = 1, ends: Ends | None = None) -> Dialer:
    return Dialer(secret, nonce(number), ends)


def answer(secret: Secret = OURS, number: int = 2, ends: Ends | None = None) -> Doorkeeper:
    return Doorkeeper(secret, nonce(number), ends)


def shake(dialer: Dialer, door: Doorkeeper) -> tuple[Seals | None, Seals | None]:
    """Both sides' seals, if they believe each other."""
    hello = dialer.challenged(door.greeted(dialer.greeting), HELLO)
    door.proved(hello)
    welcome, theirs = door.welcoming(WELCOME)
    return dialer.welcomed(welcome), theirs


def sealed(seals: Seals | None, content: bytes) -> bytearray:
    assert seals is not None
    return bytearray(content + seals.sending.of([content[:1], content[1:]]))


def opened(seals: Seals | None, frame: bytearray) -> bytes:
    assert seals is not None
    return bytes(seals.receiving.open(memoryview(frame)))


def test_what_one_side_seals_the_other_opens_in_both_directions():
    ours, theirs = shake(dial(), answer())

    for text in (b"first", b"second", b"x" * 100_000):
        assert opened(theirs, sealed(ours, text)) == text
        assert opened(ours, sealed(theirs, text)) == text


@pytest.mark.parametrize("tamper", ["change", "repeat", "drop", "reorder", "reflect", "cut", "short"])
def test_a_frame_that_was_tampered_with_is_not_read(tamper):
    ours, theirs = shake(dial(), answer())
    first, second = sealed(ours, b"first"), sealed(ours, b"second")
    if tamper == "repeat":
        opened(theirs, bytearray(first))
    frames = {
        "change": bytearray([first[0] ^ 1]) + first[1:],
        "repeat": first,
        "drop": second,
        "reorder": second,
        "reflect": sealed(theirs, b"first"),
        "cut": first[: len(first) - 1],
        "short": bytearray(SEAL_BYTES - 1),
    }

    with pytest.raises(NotProved):
        opened(theirs, frames[tamper])


def test_another_secret_proves_nothing_to_either_side():
    with pytest.raises(NotProved):
        shake(dial(THEIRS), answer(OURS))

    # A listener without the secret cannot know what to prove, whatever it pretends to have believed.
    dialer, pretender = dial(OURS), answer(THEIRS)
    impostor = dial(THEIRS, number=1)
    challenge = pretender.greeted(dialer.greeting)
    dialer.challenged(challenge, HELLO)
    pretender.proved(impostor.challenged(challenge, HELLO))
    welcome, _ = pretender.welcoming(WELCOME)
    with pytest.raises(NotProved):
        dialer.welcomed(welcome)


def test_a_proof_that_was_overheard_is_of_no_use_on_another_connection():
    dialer = dial(number=1)
    first = answer(number=2)
    overheard = dialer.challenged(first.greeted(dialer.greeting), HELLO)
    first.proved(overheard)

    second = answer(number=3)
    second.greeted(dialer.greeting)  # the same greeting, word for word
    with pytest.raises(NotProved):
        second.proved(overheard)


def test_a_welcome_that_was_overheard_is_of_no_use_on_another_connection():
    first = answer()
    one = dial(number=1)
    first.proved(one.challenged(first.greeted(one.greeting), HELLO))
    overheard, _ = first.welcoming(WELCOME)

    other = dial(number=7)
    other.challenged(Challenge(nonce=nonce(2), sealed=True), HELLO)
    with pytest.raises(NotProved):
        other.welcomed(overheard)


def test_a_proof_sent_back_to_who_made_it_proves_nothing():
    """Node 1 dials a stranger, who dials node 1 and gives it its own words."""
    dialer, door = dial(number=1), answer(number=2)
    challenge = door.greeted(Greeting(nonce=dialer.greeting.nonce))
    proof = dialer.challenged(challenge, HELLO).proof

    with pytest.raises(NotProved):
        dialer.welcomed(msgspec.structs.replace(WELCOME, proof=proof))


@pytest.mark.parametrize(
    "change",
    [{"node": 3}, {"wanted": 3}, {"directory": "another"}, {"cluster": None}, {"protocol": PROTOCOL + 1}],
    ids=str,
)
def test_who_dials_is_what_it_proved_to_be(change):
    dialer, door = dial(), answer()
    hello = dialer.challenged(door.greeted(dialer.greeting), HELLO)

    with pytest.raises(NotProved):
        door.proved(msgspec.structs.replace(hello, **change))


@pytest.mark.parametrize("change", [{"node": 3}, {"directory": "another"}, {"cluster": "another"}], ids=str)
def test_who_answers_is_what_it_proved_to_be(change):
    dialer, door = dial(), answer()
    door.proved(dialer.challenged(door.greeted(dialer.greeting), HELLO))
    welcome, _ = door.welcoming(WELCOME)

    with pytest.raises(NotProved):
        dialer.welcomed(msgspec.structs.replace(welcome, **change))


def test_between_two_ends_of_one_loopback_nothing_is_sealed():
    assert shake(dial(ends=Ends(HERE, THERE)), answer(ends=Ends(THERE, HERE))) == (None, None)


@pytest.mark.parametrize(
    ("ends", "others"),
    [
        (None, Ends(THERE, HERE)),
        (Ends(HERE, THERE), None),
        (Ends(HERE, THERE), Ends(THERE, "127.0.0.1 40001")),  # somebody sits between them
        (Ends(HERE, THERE), Ends("127.0.0.1 9193", HERE)),
    ],
)
def test_wherever_somebody_may_sit_between_them_all_is_sealed(ends, others):
    ours, theirs = shake(dial(ends=ends), answer(ends=others))

    assert opened(theirs, sealed(ours, b"x")) == b"x"


def test_nobody_between_can_have_the_seals_left_out():
    dialer, door = dial(), answer()
    challenge = msgspec.structs.replace(door.greeted(dialer.greeting), sealed=False)
    with pytest.raises(NotProved):
        dialer.challenged(challenge, HELLO)

    dialer, door = dial(ends=Ends(HERE, THERE)), answer()
    challenge = msgspec.structs.replace(door.greeted(dialer.greeting), sealed=False)
    with pytest.raises(NotProved):
        door.proved(dialer.challenged(challenge, HELLO))


def test_nobody_is_believed_out_of_order():
    with pytest.raises(NotProved):
        answer().proved(HELLO)
    with pytest.raises(NotProved):
        answer().greeted(Greeting(nonce=b"short"))
    with pytest.raises(NotProved):
        dial().challenged(Challenge(nonce=b"", sealed=True), HELLO)
    door = answer()
    door.greeted(dial().greeting)
    with pytest.raises(NotProved):
        door.greeted(dial().greeting)


def test_while_a_secret_is_replaced_nodes_with_both_believe_either():
    both = Secret([b"n" * 32, b"o" * 32])

    shake(dial(OURS), answer(both))
    with pytest.raises(NotProved):
        shake(dial(both), answer(OURS))
