"""Reads single figures from what an engine shows to Prometheus.

A whole parser would spend ten milliseconds of the event loop on vLLM's page at every look. Source:
https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
"""

import math
import re
from collections.abc import Iterable

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_values(text: str, name: str) -> list[float]:
    """Values of the metric with this whole name, such as `vllm:num_requests_running`, one for each set of labels."""
    values = []
    for line in _lines(text, name):
        try:
            values.append(float(line.rpartition("}")[2].split()[0]))
        except (ValueError, IndexError):
            continue
    return [value for value in values if math.isfinite(value)]


def read_count(text: str, name: str) -> int | None:
    """A metric that counts something, over all its labels; `None` where it is not there."""
    values = read_values(text, name)
    return int(sum(values)) if values else None


def read_labels(text: str, name: str) -> dict[str, str]:
    """The labels of the first line of a metric such as `vllm:cache_config_info`, which says everything by them."""
    for line in _lines(text, name):
        return dict(_LABEL.findall(line))
    return {}


def _lines(text: str, name: str) -> Iterable[str]:
    """What follows `name` in the lines that begin with it."""
    start = 0
    while (at := text.find(name, start)) >= 0:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        rest = text[at + len(name) : end]
        if (at == 0 or text[at - 1] == "\n") and rest[:1] in ("{", " "):
            yield rest
        start = end
