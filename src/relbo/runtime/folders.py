"""Where things are kept between processes."""

import os
import pathlib


def cache_folder() -> pathlib.Path:
    """$RELBO_CACHE_DIR, else the folder `relbo` of the user's cache. Made if it does not exist."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = pathlib.Path(os.environ.get("RELBO_CACHE_DIR") or f"{user_cache}/relbo").expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    return folder
