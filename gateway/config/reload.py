"""Keeps a gateway's config as its files are: they are watched, checked, and put in force when they can be used."""

import logging
import pathlib
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Generic, TypeVar

import anyio
import anyio.to_thread
import msgspec

from gateway.config.history import Copy, History
from gateway.config.load import read_text
from gateway.config.problems import ConfigError

POLL = 1.0
"""Seconds between two looks at the files."""

Read = Callable[[pathlib.Path], str]
"""The text of a file. Raises ConfigError where it cannot be read."""
Mark = tuple[int, int, int, int, int]
"""Of a file: device, inode, size, and when it and its mode were changed. Another one means that it may read as another,
or can be read at last."""
S = TypeVar("S")

_log = logging.getLogger("sluice.config")


class Status(msgspec.Struct, omit_defaults=True):
    """Which config is in force, since when, and why the one that is written there now is not."""

    loaded_at: datetime
    version: str
    error: str | None = None


class _BeingWritten(Exception):
    """The files were changed while they were read, so that what was read may be parts of several."""


class Reading:
    """Reads the files of a config for whoever loads it, and remembers what they were.

    Attributes:
        marks: of each file, just before it was read.
        texts: what was in them, in the order in which they were read.
    """

    def __init__(self) -> None:
        self.marks: dict[pathlib.Path, Mark | None] = {}
        self.texts: list[str] = []

    def __call__(self, path: pathlib.Path) -> str:
        self.marks[path] = mark(path)
        text = read_text(path)
        self.texts.append(text)
        return text


class Reloader(Generic[S]):
    """The config of a running gateway, of the type S.

    Args:
        path: the config file.
        load: reads the config file, and then the policy file if it names one, and raises ConfigError.
        history: where what was loaded is kept, if anywhere.
        poll: seconds between two looks at the files; `None` never looks, so that the config stays as it is.
    """

    def __init__(
        self,
        path: pathlib.Path,
        load: Callable[[pathlib.Path, Read], S],
        *,
        history: History | None = None,
        poll: float | None = POLL,
    ) -> None:
        self.path = path
        self.watches = poll is not None
        self._load = load
        self._history = history
        self._poll = poll
        self._asked = anyio.Event()
        self._known: Mapping[pathlib.Path, Mark | None] = {}
        """The files as they were when they were last read, whether they could be used or not."""
        self._copy = Copy("")
        self.status = Status(datetime.now(UTC), "")

    def first(self) -> S:
        """The config to begin with.

        Raises:
            ConfigError: it cannot be used.
        """
        reading = Reading()
        setup = self._load(self.path, reading)
        self._took(reading)
        return setup

    def ask(self) -> None:
        """Has the files loaded now, even if they look as before."""
        self._asked.set()

    async def run(self, apply: Callable[[S], Awaitable[list[str]]]) -> None:
        """Remembers the config that the gateway began with, then watches its files until cancelled.

        Args:
            apply: puts a config in force and says what was different, or raises ConfigError and changes nothing.
        """
        await self._remember(["the gateway was started with it"])
        if self._poll is None:
            return
        seen = self._known
        while True:
            with anyio.move_on_after(self._poll):
                await self._asked.wait()
            asked, self._asked = self._asked.is_set(), anyio.Event()
            before, seen = seen, await anyio.to_thread.run_sync(_marks, list(self._known), abandon_on_cancel=True)
            if asked or (seen != self._known and seen == before):  # what has just changed may be half written
                await self._reload(apply)

    async def _reload(self, apply: Callable[[S], Awaitable[list[str]]]) -> None:
        reading = Reading()
        try:
            setup = await anyio.to_thread.run_sync(self._read, reading, abandon_on_cancel=True)
            if Copy(*reading.texts) != self._copy:
                said = await apply(setup)
                self._took(reading)
                _log.info("config %s loaded: %s", self.status.version, "; ".join(said) or "only its words are others")
                await self._remember(said)
                return
        except _BeingWritten:
            pass  # it is not as it was last known, so that it is read again once it has come to rest
        except ConfigError as exc:
            self._refused(reading, str(exc))
            _log.error("the config stays as it is: %s", exc)
        except Exception:  # noqa: BLE001 - whatever a bug raises, the gateway goes on with what it has
            self._refused(reading, "the gateway failed on it; its log knows why")
            _log.exception("the config stays as it is: the gateway failed on the new one")
        else:
            self._known, self.status.error = reading.marks, None
            _log.info("config %s is in force, and nothing in its files is different", self.status.version)

    def _read(self, reading: Reading) -> S:
        try:
            return self._load(self.path, reading)
        finally:
            if _marks(reading.marks) != reading.marks:
                raise _BeingWritten

    def _took(self, reading: Reading) -> None:
        self._known, self._copy = reading.marks, Copy(*reading.texts)
        self.status = Status(datetime.now(UTC), self._copy.version)

    def _refused(self, reading: Reading, error: str) -> None:
        """The policy file is watched on, even where the config file could not be read as far as its name."""
        self._known = {**self._known, **reading.marks}
        self.status.error = error

    async def _remember(self, changes: list[str]) -> None:
        if self._history is None:
            return
        try:
            await anyio.to_thread.run_sync(self._history.record, self._copy, changes)
        except OSError as exc:
            folder = self._history.folder
            _log.warning("this config is missing in its history: %s cannot be written (%s)", folder, exc.strerror)
        except Exception:  # noqa: BLE001 - the history is no reason to stop serving
            _log.exception("this config is missing in its history: the gateway failed on it")


def mark(path: pathlib.Path) -> Mark | None:
    """What a file is at this moment; `None` where there is none, or it cannot be looked at."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _marks(paths: Collection[pathlib.Path]) -> dict[pathlib.Path, Mark | None]:
    return {path: mark(path) for path in paths}
