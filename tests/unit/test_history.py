"""The versions of a config that were loaded: what is kept, for whom, and what happens where nothing can be."""

import json
import os
import stat
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.history import KEPT, Copy, History, NoVersion, replace

ONE, TWO, THREE = Copy("one: 1\n"), Copy("two: 2\n"), Copy("one: 1\n", "models: {}\n")


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path / "sluice.yaml")


@pytest.fixture
def anyone_s_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def versions(history: History) -> list[str]:
    return [load.version for load in history.loads()]


class TestRecord:
    def test_there_is_none_at_first(self, history: History) -> None:
        assert history.loads() == []
        assert history.latest() is None
        assert not history.folder.exists()

    def test_each_load_is_remembered_with_what_was_different(self, history: History) -> None:
        history.record(ONE, ["the gateway was started with it"])
        history.record(TWO, ["engine `a` added", "queue.limit changed"])
        history.record(ONE, [])
        assert [(load.version, load.changes) for load in history.loads()] == [
            (ONE.version, ["the gateway was started with it"]),
            (TWO.version, ["engine `a` added", "queue.limit changed"]),
            (ONE.version, []),
        ]
        assert [history.copy(copy.version) for copy in (ONE, TWO)] == [ONE, TWO]

    def test_one_that_is_loaded_again_as_the_latest_is_not(self, history: History) -> None:
        history.record(ONE, ["first"])
        history.record(ONE, ["second"])
        assert [load.changes for load in history.loads()] == [["first"]]

    def test_a_policy_makes_another_version(self, history: History) -> None:
        for copy in (ONE, THREE):
            history.record(copy, [])
        assert len({ONE.version, THREE.version, Copy("one: 1\n", "").version}) == 3
        assert history.copy(ONE.version) == ONE
        assert history.copy(THREE.version) == THREE

    @settings(max_examples=50, deadline=None)
    @given(config=st.text(st.characters(codec="utf-8")), policy=st.none() | st.text(st.characters(codec="utf-8")))
    def test_files_come_back_byte_for_byte(
        self, tmp_path_factory: pytest.TempPathFactory, config: str, policy: str | None
    ) -> None:
        history = History(tmp_path_factory.mktemp("history") / "sluice.yaml")
        copy = Copy(config.removeprefix("\ufeff"), policy and policy.removeprefix("\ufeff"))
        history.record(copy, [])
        assert history.copy(copy.version) == copy

    def test_what_was_only_overwritten_is_not_the_latest_load(self, history: History) -> None:
        history.record(ONE, [])
        history.keep(TWO, "not loaded")
        assert history.latest() == ONE.version
        history.record(ONE, [])
        assert versions(history) == [ONE.version, TWO.version]
        history.keep(ONE, "known")
        assert versions(history) == [ONE.version, TWO.version]


class TestBounds:
    def test_the_oldest_are_forgotten_with_their_files(self, history: History) -> None:
        copies = [Copy(f"number: {at}\n") for at in range(KEPT + 5)]
        for copy in copies:
            history.record(copy, [])
        assert versions(history) == [copy.version for copy in copies[5:]]
        folders = {path.name for path in history.folder.iterdir() if path.is_dir()}
        assert folders == {copy.version for copy in copies[5:]}

    def test_one_that_is_loaded_again_and_again_keeps_its_files(self, history: History) -> None:
        for at in range(KEPT):
            history.record(ONE, [])
            history.record(Copy(f"number: {at}\n"), [])
        assert history.copy(ONE.version) == ONE

    def test_what_an_interrupted_one_left_behind_goes_with_the_next(self, history: History) -> None:
        history.record(ONE, [])
        (history.folder / "tmpabc").mkdir()
        history.record(TWO, [])
        assert not (history.folder / "tmpabc").exists()


class TestSecrecy:
    @pytest.mark.usefixtures("anyone_s_umask")
    def test_only_the_owner_can_read_it(self, history: History) -> None:
        history.record(THREE, ["key `alice` added"])
        top = history.folder.parent.parent
        modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (top, *top.rglob("*"))}
        secret = {path: mode for path, mode in modes.items() if path.name != ".gitignore"}
        assert len(secret) == 8  # two folders, that of the config, that of the version, two files, the list, the lock
        assert {oct(mode & 0o077) for mode in secret.values()} == {oct(0)}

    def test_files_are_for_the_owner_alone_in_a_folder_that_is_not(self, history: History) -> None:
        history.folder.mkdir(parents=True, mode=0o755)
        history.record(ONE, [])
        folder = history.folder / ONE.version
        assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "config.yaml")] == [0o700, 0o600]

    def test_git_does_not_see_it(self, history: History) -> None:
        history.record(ONE, [])
        assert (history.folder.parent.parent / ".gitignore").read_text() == "*\n"


class TestDamage:
    def test_lines_that_are_none_of_its_own_are_passed_over(self, history: History) -> None:
        history.record(ONE, [])
        with (history.folder / "loads").open("ab") as file:
            file.write(b'\xff\n{"version": 1}\n[[[[\n\n{"vers')
        history.record(TWO, [])
        assert versions(history) == [ONE.version, TWO.version]

    def test_one_with_fields_of_a_later_release_is_read(self, history: History) -> None:
        history.record(ONE, [])
        path = history.folder / "loads"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"by": "alice"}) + "\n")
        assert versions(history) == [ONE.version]

    def test_a_file_in_its_place_is_an_error_and_leaves_nothing(self, tmp_path: Path, history: History) -> None:
        (tmp_path / ".sluice").write_text("in the way")
        assert history.loads() == []
        with pytest.raises(OSError, match="exists"):
            history.record(ONE, [])
        assert [path.name for path in tmp_path.iterdir()] == [".sluice"]

    def test_a_disk_that_is_full_leaves_no_half_of_a_version(
        self, history: History, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        history.record(ONE, [])
        before = sorted(history.folder.rglob("*"))

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            with pytest.raises(OSError, match="No space left on device"):
                history.record(THREE, [])
        assert sorted(history.folder.rglob("*")) == before
        history.record(THREE, [])
        assert versions(history) == [ONE.version, THREE.version]

    def test_several_that_write_at_once_lose_nothing(self, history: History) -> None:
        """As gateways with the same file do, which all load it in the same moment."""
        threads = 8
        together = threading.Barrier(threads)

        def record(at: int) -> None:
            for turn in range(5):
                together.wait()
                History(history.folder.parents[2] / history.folder.name).keep(Copy(f"{turn}: {at % 4}\n"), "")

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(record, range(threads)))
        assert set(versions(history)) == {Copy(f"{turn}: {of}\n").version for turn in range(5) for of in range(4)}
        assert all(history.copy(version).version == version for version in versions(history))


class TestFind:
    def test_by_the_beginning_of_its_name(self, history: History) -> None:
        for copy in (ONE, TWO):
            history.record(copy, [])
        assert history.find(ONE.version) == ONE
        assert history.find(TWO.version[:4]) == TWO

    def test_none_and_several(self, history: History) -> None:
        for copy in (ONE, TWO):
            history.record(copy, [])
        with pytest.raises(NoVersion, match="sluice config history"):
            history.find("zz")
        with pytest.raises(NoVersion) as told:
            history.find("")
        assert ONE.version in str(told.value)
        assert TWO.version in str(told.value)


class TestReplace:
    def test_a_file_keeps_its_mode_and_the_links_to_it(self, tmp_path: Path) -> None:
        file, link = tmp_path / "file", tmp_path / "link"
        file.write_text("old")
        file.chmod(0o640)
        link.symlink_to(file)
        replace(link, b"new")
        assert (file.read_text(), stat.S_IMODE(file.stat().st_mode), link.is_symlink()) == ("new", 0o640, True)

    @pytest.mark.usefixtures("anyone_s_umask")
    def test_a_new_one_is_for_its_owner_alone(self, tmp_path: Path) -> None:
        replace(tmp_path / "file", b"new")
        assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600

    def test_one_that_cannot_be_written_is_named_and_stays(self, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        with pytest.raises(OSError, match=r"folder'$"):
            replace(tmp_path / "folder", b"new")
        with pytest.raises(FileNotFoundError, match=r"nowhere/file'$"):
            replace(tmp_path / "nowhere" / "file", b"new")
        assert [path.name for path in tmp_path.iterdir()] == ["folder"]
