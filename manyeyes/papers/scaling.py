"""Smaller, and without a download: what a recipe becomes on one machine, and the sentence that says so."""

import math
from dataclasses import replace
from itertools import pairwise

from manyeyes.papers.exhibit import DatasetRecipe, RunRecipe
from manyeyes.papers.metric import LEAST, shrunk

# What is multiplied by the factor or its root, what it is called, and the least that something can be learnt from.
BY_FACTOR = {
    "rounds": ("rounds", LEAST),
    "max_local_batches": ("", LEAST),
    "evaluate_every": ("", 1),
    "algorithm.cohort_size": ("clients a round", 5),
    "sampler.cohort_size": ("clients a round", 5),
    "data.users": ("users", 20),
}
BY_ROOT = {
    "data.images_per_user": ("photos a user", 12),
    "data.size": ("", 32),
    "preprocess.crop": ("pixels a side", 32),
    "algorithm.virtual_client_size": ("examples of a virtual client", 16),
}
EPOCHS = ("rounds", "evaluate_every")  # what counts epochs where training is centralised
# How each dataset is imitated: with its numbers of users and photos, and of classes where the world has so many (136).
# Where a paper tests on images of nobody, every sixth photo of each user is for testing, so that there are more photos;
# FLAIR's users are split 80/10/10. 0 photos: heavy-tailed.
WORLDS = {
    "flair": "users=51414 images_per_user=0 size=256 coarse=17 fine=1628 alpha=3 class_imbalance=1",
    "cifar10": "users=100 images_per_user=600 size=32 coarse=10 fine=10 class_imbalance=0 split=per_user",
    "cifar10 classes": "users=10 images_per_user=6000 size=32 coarse=10 fine=10 class_imbalance=0 split=per_user",
    "cifar100": "users=100 images_per_user=600 size=32 coarse=100 fine=100 class_imbalance=0 split=per_user",
    "inaturalist user_120k": "users=9275 images_per_user=0 size=256 coarse=100 fine=100 alpha=0.3 class_imbalance=0 split=per_user",
    "inaturalist geo_100": "users=3606 images_per_user=40 size=256 coarse=100 fine=100 alpha=0.3 class_imbalance=0 split=per_user",
    "inaturalist geo_1k": "users=368 images_per_user=392 size=256 coarse=100 fine=100 alpha=0.5 class_imbalance=0 split=per_user",
    "inaturalist geo_3k": "users=135 images_per_user=1069 size=256 coarse=100 fine=100 alpha=0.7 class_imbalance=0 split=per_user",
    "inaturalist geo_30k": "users=11 images_per_user=13124 size=256 coarse=100 fine=100 alpha=1 class_imbalance=0 split=per_user",
    "landmarks": "users=1262 images_per_user=156 size=224 coarse=100 fine=100 alpha=0.1 class_imbalance=0 split=per_user",
    "flickr_aes": "users=30 images_per_user=140 size=224 split=per_user",
}


def scale(run: RunRecipe, factor: float) -> RunRecipe:
    """The run, smaller: rounds and clients times the factor, photos of each client and pixels times its root.

    The rounds of a centralised run, which are epochs, are times the root too: what it trains on is already smaller.
    Learning rates, batches and epochs stay, and so does the ratio of the cohort whose noise is simulated to the cohort,
    as long as there are so many users.
    """
    if not 0 < factor <= 1:
        raise ValueError(f"scale is {factor}: give a number above 0 and up to 1")
    old = dict(word.split("=", 1) for word in run.settings)
    new, said = dict(old), []
    for share, names in ((factor, BY_FACTOR), (math.sqrt(factor), BY_ROOT)):
        for name, (called, least) in names.items():
            before, pooled = int(old.get(name, 0)), old.get("algorithm") == "centralized"
            after = _smaller(before, math.sqrt(factor) if pooled and name in EPOCHS else share, least)
            if after != before:
                new[name] = str(after)
                said += [f"{called} {before} to {after}"] if called else []
    if "privacy.noise_cohort_size" in old:
        ratio = int(old["privacy.noise_cohort_size"]) / int(old["sampler.cohort_size"])
        everyone = int(new.get("data.users", 0)) * 8 // 10 or math.inf  # of a stand-in's users, who train
        new["privacy.noise_cohort_size"] = str(min(round(ratio * int(new["sampler.cohort_size"])), everyone))
    store = None if run.store is None else _smaller_store(run.store, math.sqrt(factor))
    if store is not None:
        new["data.path"] = store.path
    if not said:
        return run
    settings = tuple(f"{name}={value}" for name, value in new.items())
    changes = (*run.changes, f"Scaled by {factor:g}: {', '.join(said)}.")
    return replace(run, settings=settings, store=store, changes=changes)


def on_synthetic_data(run: RunRecipe) -> RunRecipe:
    """The run on a procedural world of the same kind: labels, users, photos a user, size of images and split.

    Pretrained weights are left out, and with them frozen statistics, which mean nothing without.
    """
    settings = dict(word.split("=", 1) for word in run.settings)
    dataset, path, task = (settings.pop(name, "") for name in ("data", "data.path", "data.task"))
    few, _ = settings.pop("data.repartition.classes_per_client", ""), settings.pop("data.repartition.num_clients", "")
    options = _options(run.store)
    kind = "classes" if few else options.get("split", "")
    world = WORLDS.get(f"{dataset} {kind}") or WORLDS[dataset]
    made = {"data": "synthetic", "data.task": task or ("rating" if dataset == "flickr_aes" else "single")}
    made |= {f"data.{name}": value for name, value in (word.split("=") for word in world.split())}
    if few:
        made["data.alpha"] = str(int(few) / 10)
    elif "alpha" in options:
        made["data.alpha"] = str(max(0.001, float(options["alpha"])))
    sentence = f"Stand-in: {path} is replaced by a procedural world"
    if settings.pop("model.pretrained", ""):
        settings["model.norm"] = "group"
        sentence += ", and pretrained weights by random ones"
    words = tuple(f"{name}={value}" for name, value in (made | settings).items())
    return replace(run, settings=words, store=None, changes=(*run.changes, sentence + "."))


def cut(run: RunRecipe, rounds: int) -> RunRecipe:
    """The run with at most so many rounds (of a centralised one, epochs), or (0) with its own."""
    before = int(run.setting("rounds") or 0)
    if not rounds or before <= rounds:
        return run
    words = tuple(f"rounds={rounds}" if word.startswith("rounds=") else word for word in run.settings)
    return replace(run, settings=words, changes=(*run.changes, f"Cut at {rounds} rounds of {before}."))


def _smaller(count: int, share: float, least: int) -> int:
    return shrunk(count, share, least) if count else 0


def _smaller_store(store: DatasetRecipe, share: float) -> DatasetRecipe:
    """The store in smaller pixels, under a name of its own; as it is where its images are."""
    if "--size" not in store.options:
        return store
    place = store.options.index("--size") + 1
    side = _smaller(int(store.options[place]), share, 32)
    words = (*store.options[:place], str(side), *store.options[place + 1 :])
    return store if words == store.options else replace(store, path=f"{store.path}_{side}px", options=words)


def _options(store: DatasetRecipe | None) -> dict[str, str]:
    """The options that a store is prepared with."""
    words = () if store is None else store.options
    return {word.removeprefix("--"): value for word, value in pairwise(words) if word[:2] == "--"}
