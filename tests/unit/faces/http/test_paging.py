from tidelog.faces.http.paging import page


def test_pages_follow_each_other_and_the_last_says_so():
    names = ["d", "a", "c", "b", "e"]

    first, after = page(names, limit=2, after=None)
    second, after_second = page(names, limit=2, after=after)
    third, end = page(names, limit=2, after=after_second)

    assert (first, second, third) == (["a", "b"], ["c", "d"], ["e"])
    assert (after, after_second, end) == ("b", "d", None)


def test_a_page_that_ends_exactly_is_the_last():
    assert page(["a", "b"], limit=2, after=None) == (["a", "b"], None)
    assert page([], limit=2, after=None) == ([], None)


def test_what_was_deleted_meanwhile_leaves_no_gap():
    assert page(["a", "c"], limit=9, after="b") == (["c"], None)
