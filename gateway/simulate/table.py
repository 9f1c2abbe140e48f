"""A report as text for people."""

from collections.abc import Sequence

from gateway.simulate.report import Engine, Group, Report, Times

Row = Sequence[str]

_REQUESTS = ("requests", "answered", "429", "503", "failed")
_TIMES = ("wait p50", "p95", "p99", "TTFT p50", "p95", "p99", "total p50", "p95", "p99", "tok/s")


def table(report: Report) -> str:
    """Times in seconds, tables one below the other."""
    parts = [
        _head(report),
        _table(("request", *_REQUESTS, *_TIMES), [_group(name, one) for name, one in report.requests.items()]),
        _table(
            ("tier", "share", *_REQUESTS, *_TIMES),
            [_group(f"{one.model} -> {one.tier}", one.requests, _percent(one.share)) for one in report.tiers],
        ),
        _table(
            ("engine", "slots", "used", "requests", "prefill/s", "tok/s", "cached", "loads", "TTFT p50", "p95", "p99"),
            [_engine(name, one) for name, one in report.engines.items()],
        ),
    ]
    if report.keys:
        rows = [
            _group(name, one.requests, "-" if one.share is None else f"{one.share:.2f}")
            for name, one in report.keys.items()
        ]
        parts.append(_table(("key", "got/claim", *_REQUESTS, *_TIMES), rows))
    return "\n\n".join(parts) + "\n"


def _head(report: Report) -> str:
    total = report.total
    errors = ", ".join(f"{count} {code}" for code, count in total.codes.items()) or "none refused"
    lines = [
        f"{total.requests} requests in {report.seconds:.0f} s: {total.answered} answered"
        f"{f' ({total.cut} of them cut)' if total.cut else ''}, {errors}; {total.tokens_per_second:.1f} tok/s.",
        f"{_percent(report.spilled)} of those that had a place spilled over to a further tier.",
    ]
    if report.fairness is not None:
        lines.append(
            f"Fairness among keys that waited at the same time (Jain): {report.fairness:.3f}, "
            f"over {report.contested} place{'' if report.contested == 1 else 's'}."
        )
    return "\n".join(lines)


def _group(name: str, group: Group, *more: str) -> Row:
    counts = (group.requests, group.answered, group.too_many, group.unavailable, group.failed)
    times = (*_times(group.waited), *_times(group.ttft), *_times(group.total))
    return (name, *more, *map(str, counts), *times, f"{group.tokens_per_second:.1f}")


def _engine(name: str, engine: Engine) -> Row:
    return (
        name,
        str(engine.slots) if engine.places == engine.slots else f"{engine.places} of {engine.slots}",
        _percent(engine.used),
        str(engine.requests.requests),
        f"{engine.prefill_per_second:.0f}",
        f"{engine.tokens_per_second:.1f}",
        _percent(engine.cached),
        str(engine.loads),
        *_times(engine.requests.ttft),
    )


def _times(times: Times | None) -> Row:
    return ("-", "-", "-") if times is None else (f"{times.p50:.2f}", f"{times.p95:.2f}", f"{times.p99:.2f}")


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _table(head: Row, rows: Sequence[Row]) -> str:
    """Columns as wide as what is in them; the first one to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) if at == 0 else cell.rjust(width) for at, (cell, width) in enumerate(row))
        for row in (list(zip(one, widths, strict=True)) for one in (head, *rows))
    )
    return "\n".join(line.rstrip() for line in lines)
