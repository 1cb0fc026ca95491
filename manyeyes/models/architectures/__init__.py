"""The models that are known by name, one file each; every file of this folder is loaded and registers its models."""

from importlib import import_module
from pkgutil import iter_modules

for module in iter_modules(__path__):
    import_module(f"{__name__}.{module.name}")
