"""The cluster's secret."""

import pickle

import pytest

from tidelog.security.secrets import SECRETS_MAX, Secret, prove

OLD, NEW = b"o" * 32, b"n" * 40


def test_the_first_secret_proves_and_all_are_believed():
    both, new = Secret.parse(b"# replaced in May\n" + NEW + b"\n\n" + OLD + b"\n"), Secret([NEW])

    assert both.newest == new.newest
    assert both.key_of(prove(Secret([OLD]).newest, b"a", b"x"), b"a", b"x") == Secret([OLD]).newest
    assert new.key_of(prove(Secret([OLD]).newest, b"a", b"x"), b"a", b"x") is None


def test_a_proof_is_of_one_label_and_of_what_was_said():
    secret = Secret([OLD])
    proof = prove(secret.newest, b"dialer", b"said")

    assert secret.key_of(proof, b"dialer", b"said") is not None
    assert secret.key_of(proof, b"listener", b"said") is None
    assert secret.key_of(proof, b"dialer", b"another") is None
    assert secret.key_of(b"", b"dialer", b"said") is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "holds no secret"),
        (b"# nothing\n", "holds no secret"),
        (b"short\n", "fewer than 32"),
        (b"\n".join([OLD] * (SECRETS_MAX + 1)), "at most"),
        (b"x" * 100_000, "larger than"),
    ],
)
def test_a_file_that_holds_none_is_refused_and_not_shown(content, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        Secret.parse(content)

    assert "short" not in str(caught.value)


def test_a_secret_is_shown_nowhere():
    secret = Secret([OLD])

    assert repr(secret) == str(secret) == "<Secret>"
    with pytest.raises(TypeError):
        pickle.dumps(secret)
