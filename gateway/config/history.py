"""Copies of every config that was loaded, so that one can be compared with another, and put back.

`.sluice/history/NAME/` beside the config file NAME holds a folder for each version with the files as they were, and
`loads`, a JSON object for each time that one was loaded. A version is named by a hash of its files. As configs can hold
keys, nobody but the owner can read any of it. Gateways with the same file, and commands, write it one after the other.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from gateway.config.load import read_text

KEPT = 50
"""The latest loads that are remembered."""
CONFIG, POLICY = "config.yaml", "policy.yaml"
"""The files of a version."""
_LOADS, _LOCK = "loads", ".lock"
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


class Load(msgspec.Struct, frozen=True, omit_defaults=True):
    """A version, when it was loaded, and what was different from the one before, in words.

    `loaded` is `False` for one that was only found in the files when they were written over.
    """

    version: str
    at: datetime
    changes: list[str]
    loaded: bool = True


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

    def latest(self) -> str | None:
        """The version that was loaded last.

        Raises:
            OSError: the history cannot be read.
        """
        return next((load.version for load in reversed(self.loads()) if load.loaded), None)

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
        if self.latest() != copy.version:
            self._add(copy, Load(copy.version, datetime.now(UTC), changes))

    def keep(self, copy: Copy, why: str) -> None:
        """Remembers a config that is about to be written over, unless it is remembered anyway.

        Raises:
            OSError: the history cannot be written.
        """
        if copy.version not in {load.version for load in self.loads()}:
            self._add(copy, Load(copy.version, datetime.now(UTC), [why], loaded=False))

    def _add(self, copy: Copy, load: Load) -> None:
        self._make_folders()
        with _locked(self.folder / _LOCK):
            self._write(copy)
            kept = [*self.loads(), load][-KEPT:]
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
        try:
            replace(part / CONFIG, copy.config.encode())
            if copy.policy is not None:
                replace(part / POLICY, copy.policy.encode())
            part.rename(folder)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def replace(path: pathlib.Path, content: bytes) -> None:
    """Writes a file so that whoever reads it has all of the old content or all of the new.

    A new file is for its owner alone; one that is there keeps its mode, its owner where that is allowed, and the
    symbolic links that lead to it.

    Raises:
        OSError: it cannot be written; `filename` is its own.
    """
    path = path.resolve()
    try:
        _replace(path, content)
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, str(path)) from exc


def _replace(path: pathlib.Path, content: bytes) -> None:
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
