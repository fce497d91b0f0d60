"""The directive ``cli-reference``: every command and option of the command line, read from the program itself."""
from __future__ import annotations
from sphinx.application import Sphinx
def setup(app: Sphinx) -> dict[str, bool]:
    return {"parallel_read_safe": True}
