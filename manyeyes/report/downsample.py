"""Downsampling of long curves for a screen."""

from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray


def downsample_minmax(x: ArrayLike, y: ArrayLike, max_points: int) -> NDArray[np.intp]:
    """Return the indices of at most `max_points`, 4 or more, that look like the whole curve.

    They are the two ends, and the lowest and the highest point of each of equal intervals of x, so no peak is lost.
    x is in ascending order, as it is drawn (logarithms on a logarithmic axis); y is NaN where the curve has a gap.
    """
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    count = len(y)
    if count <= max_points:
        return np.arange(count)
    num_intervals = (max_points - 2) // 2
    positions = (x - x[0]) / ((x[-1] - x[0]) or 1.0)
    interval = np.minimum((positions * num_intervals).astype(np.intp), num_intervals - 1)
    starts = np.flatnonzero(np.diff(interval, prepend=-1))  # intervals ascend as x does
    low, high = (np.where(np.isnan(y), gap, y) for gap in (np.inf, -np.inf))
    slices = [slice(start, end) for start, end in pairwise([*starts.tolist(), count])]
    extremes = [part.start + index for part in slices for index in (low[part].argmin(), high[part].argmax())]
    return np.unique([0, count - 1, *extremes])
