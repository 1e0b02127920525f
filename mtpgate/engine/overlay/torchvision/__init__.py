"""Imports the installed torchvision, also where its compiled part does not fit the installed torch.

A torchvision from a package index is built for CUDA. Beside a CPU torch its compiled part does not load, and its import
fails on describing the operator ``torchvision::nms``, which nobody declared. ``import sglang`` needs that import
(through transformers' image processing) before any plugin is loaded, but never calls the operators. So the import is
tried as it is, and once more with the two operators declared.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path

import torch


def _load_installed() -> None:
    overlay = Path(__file__).resolve().parent.parent
    module = sys.modules[__name__]
    spec = PathFinder.find_spec(__name__, [entry for entry in sys.path if Path(entry).resolve() != overlay])
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'torchvision' besides mtpgate's wrapper of it", name=__name__)
    # This module becomes the installed one: submodules and __file__ are found there from now on.
    module.__spec__, module.__file__ = spec, spec.origin
    module.__path__ = list(spec.submodule_search_locations or ())
    try:
        spec.loader.exec_module(module)
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
        declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        spec.loader.exec_module(module)
        # torch drops the operators of a library object that is collected.
        module._mtpgate_declared = declared


_load_installed()
