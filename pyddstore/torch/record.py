"""{name}.meta.json: what readers of a method 2 dataset need to know of its samples."""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from typing import Any, NamedTuple
from urllib.parse import quote

from .samples import Structure, field_of_json, field_to_json

FORMAT = 1
_LONGEST = 200  # bytes of a file's name before .meta.json


class Record(NamedTuple):
    """A dataset's description. token: 32 hexadecimal digits, of the run that wrote."""

    name: str
    structure: Structure
    total: int
    token: str


def new_token() -> str:
    """A token for a run."""
    return secrets.token_hex(16)


def token_variable(name: str) -> str:
    """The variable that holds the token in the store."""
    return f"{name}#run"


def path_of(dir: str, name: str) -> str:
    """The file of a dataset; as it is called where the name is ASCII letters, digits,
    _ and - only."""
    safe = name
    if not re.fullmatch("[A-Za-z0-9_-]+", name):
        safe = quote(name, safe="")
    if len(safe) > _LONGEST:
        digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
        safe = f"{safe[: _LONGEST - 40]}.{digest}"
    return os.path.join(dir, f"{safe}.meta.json")


def write(dir: str, record: Record) -> None:
    """Puts the file there, whole or not at all."""
    text = json.dumps(
        {
            "format": FORMAT,
            "name": record.name,
            "run": record.token,
            "total": record.total,
            "structure": record.structure.container,
            "whole": record.structure.whole,
            "fields": [field_to_json(field) for field in record.structure.fields],
        },
        indent=1,
    )
    path = path_of(dir, record.name)
    new = f"{path}.{record.token}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(new, flags, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(new, path)


def read(dir: str, name: str) -> Record | None:
    """What the file says; None: it isn't there, or isn't one."""
    try:
        fd = os.open(path_of(dir, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd) as file:
            one: dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    try:
        if one["format"] != FORMAT or one["name"] != name:
            return None
        fields = tuple(field_of_json(field) for field in one["fields"])
        structure = Structure(str(one["structure"]), fields, bool(one["whole"]))
        return Record(name, structure, int(one["total"]), str(one["run"]))
    except (KeyError, TypeError):
        return None


def remove(dir: str, record: Record) -> None:
    """Takes the file away, if it still is this run's."""
    found = read(dir, record.name)
    if found is not None and found.token == record.token:
        try:
            os.unlink(path_of(dir, record.name))
        except OSError:
            pass
