"""Speculative decoding: which drafts are right, and what comes behind them."""

from __future__ import annotations

from collections.abc import Sequence


def accept(drafts: Sequence[int], chosen: Sequence[int]) -> list[int]:
    """New tokens of a sequence whose last token and ``drafts`` ran through the model.

    ``chosen`` are the model's own tokens behind each of these rows, one more than drafts.  A
    draft is right where the model chose it too; behind the first that is wrong, rows saw a
    text that is not.  So the new tokens are the model's own up to there: as many as without
    drafts, and one more for each accepted draft.
    """
    for count, draft in enumerate(drafts):
        if draft != chosen[count]:
            return list(chosen[: count + 1])
    return list(chosen)


def shift(following: Sequence[int], at: int, draft: int) -> list[int]:
    """The tokens one further on than ``following``: up to row ``at``, behind which is a draft.

    Rows behind ``at`` are not part of the text; what they get does not matter.
    """
    return [*following[1 : at + 1], draft, *following[at + 1 :]]
