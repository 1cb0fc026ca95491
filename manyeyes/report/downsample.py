"""Downsampling of long curves for a screen."""

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
    lowest_first = np.lexsort((y, interval))  # NaN comes last
    highest_first = np.lexsort((-y, interval))
    _, starts = np.unique(interval, return_index=True)
    return np.unique(np.concatenate([[0, count - 1], lowest_first[starts], highest_first[starts]]))
