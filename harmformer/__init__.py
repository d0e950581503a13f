__version__ = "0.2.0"

from pathlib import Path as _Path
from typing import TYPE_CHECKING as _TYPES

if _TYPES: from harmformer.core import *


def __getattr__(name):
    "The public names of `harmformer.core`, which is imported when the first of them is asked for: `harmformer.create_model(...)`."
    if name[0] != '_' and not (_Path(__file__).parent/f'{name}.py').exists():
        from harmformer import core
        if name in core.__all__: return getattr(core, name)
    raise AttributeError(f"module 'harmformer' has no attribute {name!r}")


def __dir__():
    from harmformer import core
    return sorted([*globals(), *core.__all__])
