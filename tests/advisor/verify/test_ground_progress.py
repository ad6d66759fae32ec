"""How long verifying will take, as it is said while it runs."""

from __future__ import annotations

from npufix.advisor.console.progress_line import Countdown


def test_the_rest_is_estimated_from_what_was_not_remembered() -> None:
    times = iter([0.0, 10.0, 30.0, 310.0])
    said: list[str] = []
    countdown = Countdown(said.append, lambda: next(times))
    for done in (4, 5, 6, 8):
        countdown(done, 8)
    assert said == [
        "Verifying: 4 of 8",
        "Verifying: 5 of 8, about 60 s left",
        "Verifying: 6 of 8, about 5 min left",
        "Verifying: 8 of 8",
    ]
