"""Records and the declarations about them: schemas, frames, persons, sources."""

from dpscp._base.lazy import lazy_exports

__getattr__ = lazy_exports({}, __name__)
