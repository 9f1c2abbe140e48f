"""Copies of every config that was loaded, so that one can be compared with another, and put back.

`.sluice/history/NAME/` beside the config file NAME holds a folder for each version with the files as they were, and
`loads`, a JSON object for each time that one was loaded. A version is named by a hash of its files. As configs can hold
keys, nobody but the owner can read any of it.
"""

import contextlib
import hashlib
import os
import pathlib
import shutil
import tempfile
from datetime import UTC, datetime

import msgspec

from gateway.config.load import read_text

KEPT = 50
"""The latest loads that are remembered."""
CONFIG, POLICY = "config.yaml", "policy.yaml"
"""The files of a version."""
_LOADS = "loads"
_DIGITS = 12
_OWNER_ONLY = 0o700


class NoVersion(Exception):
    """There is no such version, or more than one; the message says so."""


class Copy(msgspec.Struct, frozen=True):
    """A config as it is written: the text of its own file, and of the policy file that it names."""

    config: str
    policy: str | None = None

    @property
    def version(self) -> str:
        digest = hashlib.sha256(self.config.encode())
        if self.policy is not None:
            digest.update(b"\0" + self.policy.encode())
        return digest.hexdigest()[:_DIGITS]


class Load(msgspec.Struct, frozen=True):
    """A version, when it was loaded, and what was different from the one before, in words."""

    version: str
    at: datetime
    changes: list[str]


class History:
    """The versions of one config file.

    Args:
        path: the config file.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.folder = path.parent / ".sluice" / "history" / path.name

    def loads(self) -> list[Load]:
        """All that are remembered, the latest one last; none where there is no history.

        Raises:
            OSError: the history cannot be read.
        """
        try:
            lines = (self.folder / _LOADS).read_bytes().splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []
        loads = []
        for line in lines:
            with contextlib.suppress(msgspec.MsgspecError):
                loads.append(msgspec.json.decode(line, type=Load))
        return loads

    def find(self, name: str) -> Copy:
        """The version whose name begins with `name`.

        Raises:
            NoVersion: none does, or several do.
            OSError, ConfigError: it cannot be read.
        """
        found = sorted({load.version for load in self.loads() if load.version.startswith(name)})
        if len(found) != 1:
            why = f"{', '.join(found)} begin with it" if found else "`sluice config history` lists those there are"
            raise NoVersion(f"no one version is meant by `{name}`: {why}")
        return self.copy(found[0])

    def copy(self, version: str) -> Copy:
        """
        Raises:
            ConfigError: it cannot be read.
        """
        folder = self.folder / version
        policy = folder / POLICY
        return Copy(read_text(folder / CONFIG), read_text(policy) if policy.exists() else None)

    def record(self, copy: Copy, changes: list[str]) -> None:
        """Remembers that `copy` was loaded now, unless it was the latest one anyway.

        Raises:
            OSError: the history cannot be written.
        """
        loads = self.loads()
        if loads and loads[-1].version == copy.version:
            return
        self._make_folders()
        self._write(copy)
        kept = [*loads, Load(copy.version, datetime.now(UTC), changes)][-KEPT:]
        replace(self.folder / _LOADS, b"".join(msgspec.json.encode(load) + b"\n" for load in kept))
        versions = {load.version for load in kept}
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder.name not in versions:
                shutil.rmtree(folder)

    def _make_folders(self) -> None:
        top = self.folder.parent.parent
        for folder in (top, self.folder.parent, self.folder):
            folder.mkdir(mode=_OWNER_ONLY, exist_ok=True)
        ignored = top / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")

    def _write(self, copy: Copy) -> None:
        """A folder with its name holds all of the version, or is not there."""
        folder = self.folder / copy.version
        if folder.exists():
            return
        part = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        replace(part / CONFIG, copy.config.encode())
        if copy.policy is not None:
            replace(part / POLICY, copy.policy.encode())
        part.rename(folder)


def replace(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that whoever reads it has all of the old content or all of the new.

    A new file is for its owner alone; one that is there keeps its mode, its owner where that is allowed, and the
    symbolic links that lead to it.

    Raises:
        OSError: it cannot be written.
    """
    path = path.resolve()
    number, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(number, "wb") as file:
            with contextlib.suppress(FileNotFoundError):
                before = path.stat()
                os.fchmod(number, before.st_mode & 0o7777)
                with contextlib.suppress(PermissionError):
                    os.fchown(number, before.st_uid, before.st_gid)
            file.write(content)
            file.flush()
            os.fsync(number)
        pathlib.Path(name).replace(path)
    except BaseException:
        pathlib.Path(name).unlink(missing_ok=True)
        raise
