"""What the kernel tells of processes. Linux only, as it is read from `/proc`."""

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether the process runs. One that ended counts as gone even if nobody has taken note of its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that are still there."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())


def open_files(pid: int) -> int:
    """How many files and sockets `pid` has open."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def own_memory(pid: int) -> int:
    """Bytes of memory that `pid` shares with no other process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_"))
