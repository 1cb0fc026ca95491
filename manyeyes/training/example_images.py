"""A few evaluated images and what the model says of them, for reports: never of private runs or of other machines."""

import base64
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from manyeyes.core.population import Ints, Population
from manyeyes.core.rng import make_rng

MAX_SAMPLED = 256  # images that the model is asked about
MAX_CLASSES, PER_CLASS = 8, 2  # typical images of a class, and as many misclassified ones
MAX_USERS, PER_USER = 3, 4
THUMBNAIL_PIXELS, QUALITY = 72, 75  # longer side; of the JPEG: all of a run have about 100 kB on a page

Scores = NDArray[np.float64]


def sampled_examples(population: Population, seed: int) -> Ints:
    """Return examples drawn at random, in their order."""
    rng, count = make_rng(seed, "example images"), len(population)
    return np.sort(rng.choice(count, min(MAX_SAMPLED, count), replace=False))


def example_images(population: Population, examples: Ints, outputs_NC: NDArray[Any]) -> dict[str, Any]:
    """Return typical and misclassified images of the most common classes, and of the users with the most mistakes."""
    is_true_NC = np.zeros(outputs_NC.shape, bool)
    is_true_NC[population.labels.nonzero(examples)] = True
    scores_NC = _probabilities(np.asarray(outputs_NC, np.float64), population.labels.multi)
    has_NC = scores_NC >= 0.5 if population.labels.multi else scores_NC == scores_NC.max(axis=1, keepdims=True)
    entries = [
        *_by_class(is_true_NC, scores_NC, has_NC),
        *_by_user(population, examples, is_true_NC, scores_NC, has_NC),
    ]
    images = []
    for n, c, heading in entries:
        predicted = c if has_NC[n, c] else int(scores_NC[n].argmax())
        images.append(
            {
                "heading": heading or population.classes[c],
                "by": "user" if heading else "class",
                "class": population.classes[c],
                "predicted": population.classes[predicted],
                "probability": round(float(scores_NC[n, predicted]), 3),
                "is_correct": bool(has_NC[n, c]),
                **_thumbnail(population.rgb_pixels(examples[n : n + 1])[0]),
            }
        )
    return {"images": images}


def _by_class(
    is_true_NC: NDArray[np.bool_], scores_NC: Scores, has_NC: NDArray[np.bool_]
) -> Iterator[tuple[int, int, str]]:
    """Yield images of the most common classes: those that the model is most sure of, and those that it misses most."""
    for c in np.argsort(-is_true_NC.sum(axis=0), kind="stable")[:MAX_CLASSES].tolist():
        members = np.flatnonzero(is_true_NC[:, c])
        ascending = members[np.argsort(scores_NC[members, c], kind="stable")]
        typical = [n for n in ascending[::-1].tolist() if has_NC[n, c]][:PER_CLASS]
        missed = [n for n in ascending.tolist() if not has_NC[n, c]][:PER_CLASS]
        yield from ((n, c, "") for n in typical + missed)


def _by_user(
    population: Population, examples: Ints, is_true_NC: NDArray[np.bool_], scores_NC: Scores, has_NC: NDArray[np.bool_]
) -> Iterator[tuple[int, int, str]]:
    """Yield images of the users with the most mistakes: what the model misses most, and one that it recognizes."""
    owners = population.owners(examples)
    true_scores_N = np.where(is_true_NC, scores_NC, np.inf).min(axis=1)  # of the label that is missed most
    labels_N = np.where(is_true_NC, scores_NC, np.inf).argmin(axis=1)
    is_missed_N = is_true_NC.any(axis=1) & ~has_NC[np.arange(len(labels_N)), labels_N]
    mistakes_U = np.bincount(owners[is_missed_N], minlength=len(population.user_ids))
    for user in np.argsort(-mistakes_U, kind="stable")[:MAX_USERS].tolist():
        members = np.flatnonzero((owners == user) & is_true_NC.any(axis=1))
        ascending = members[np.argsort(true_scores_N[members], kind="stable")].tolist()
        chosen = list(dict.fromkeys([*ascending[: PER_USER - 1], *ascending[-1:]]))
        yield from ((n, int(labels_N[n]), f"user {population.user_name(user)}") for n in chosen if mistakes_U[user])


def _probabilities(outputs_NC: Scores, is_multi: bool) -> Scores:
    if is_multi:
        return np.asarray(1 / (1 + np.exp(-np.clip(outputs_NC, -50, 50))))
    exponentials_NC = np.exp(outputs_NC - outputs_NC.max(axis=1, keepdims=True))
    return np.asarray(exponentials_NC / exponentials_NC.sum(axis=1, keepdims=True))


def _thumbnail(pixels_HWC: NDArray[np.uint8]) -> dict[str, Any]:
    picture, buffer = Image.fromarray(pixels_HWC), io.BytesIO()
    picture.thumbnail((THUMBNAIL_PIXELS, THUMBNAIL_PIXELS))
    picture.save(buffer, "jpeg", quality=QUALITY)
    return {"format": "jpeg", "width": picture.width, "data": base64.b64encode(buffer.getvalue()).decode()}
