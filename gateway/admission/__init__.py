"""The queue in front of engines: who gets the next place, who waits, and where a request goes when it need not wait.

The rules are plain code on a clock that is given, so that a simulation can run them in its own time: `Admission` is
told of each arrival, each place that becomes free, and the passing of time. `Lease` is what requests wait in.

A request has tiers, the preferred one first. It may use the first, and each further one for as long as the wait that
is predicted at all before it is longer than its `spill`. Requests that may use the same engines now wait together.

Of those that may use a place that becomes free, the one of the highest class goes first; inside a class, that of the
key which had the least of these engines while others waited too (`Group`); of a key, the oldest. A lower class is not
passed over for ever: after `PASSES` places one is its own. A request of a higher class that finds no free place may
take that of a lower one which has sent nothing to its client yet. That one then waits on as if it had never had it,
and keeps the next place that it gets.

A request waits for as long as an engine may come back, but not when none that it may ever use was ready for
`PATIENCE` seconds.
"""

from gateway.admission.ask import Ask, Place, QueueFull, QueueTimeout, Score
from gateway.admission.lease import Lease
from gateway.admission.queue import PATIENCE, TICK, Admission
from gateway.admission.shares import CLASSES

__all__ = [
    "CLASSES",
    "PATIENCE",
    "TICK",
    "Admission",
    "Ask",
    "Lease",
    "Place",
    "QueueFull",
    "QueueTimeout",
    "Score",
]
