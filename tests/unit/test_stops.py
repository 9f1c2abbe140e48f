"""Stop strings are kept wherever a text is cut into pieces."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.translate.stops import StopFilter, Text, joined


def ending(text: str, stops: list[str]) -> list[str]:
    return [stop for stop in stops if text.endswith(stop)]


class TestStopFilter:
    @settings(max_examples=300)
    @given(
        text=st.text("abN", max_size=20),
        stops=st.lists(st.text("abN", min_size=1, max_size=4), max_size=4),
        cuts=st.lists(st.integers(0, 20), max_size=10),
    )
    def test_the_text_ends_before_the_one_complete_first_wherever_it_is_cut(
        self, text: str, stops: list[str], cuts: list[int]
    ) -> None:
        ends = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
        pieces = [text[start:end] for start, end in pairwise(ends)]
        held, out = StopFilter(stops), list[Text]()
        for piece in pieces:
            out.append(held.take(Text(piece, [{"token": piece}])))
            if held.found:
                break
        else:
            out.append(held.rest())
        first = next(
            (end - len(max(found, key=len)) for end in range(len(text) + 1) if (found := ending(text[:end], stops))),
            len(text),
        )
        assert joined(out).text == text[:first]
        assert held.found == any(stop in text for stop in stops)
        if not held.found:
            assert [entry["token"] for entry in joined(out).logprobs] == pieces

    def test_what_cannot_become_one_goes_on_at_once(self) -> None:
        held = StopFilter(["END"])
        assert [held.take(Text(piece, [])).text for piece in ("a", "bE", "N", "x", "E")] == ["a", "b", "", "ENx", ""]
        assert held.rest().text == "E"

    def test_its_tokens_have_no_log_probabilities_left(self) -> None:
        held = StopFilter(["END"])
        first = held.take(Text("a", [{"token": "a"}]))
        begun = held.take(Text("bEN", [{"token": "bEN"}]))
        last = held.take(Text("D", [{"token": "D"}]))
        assert joined([first, begun, last]) == Text("ab", [{"token": "a"}, {"token": "bEN"}])
