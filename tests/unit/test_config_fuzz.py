"""Whatever the config file holds, the loader answers with a Config or a ConfigError, and with nothing else."""

import string

import msgspec
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.schema import Config, Engine, Key, Managed, Probe, Server, Target, Timeouts
from tests.unit.config.cases import KINDS, URL, failure

KEYS = [
    field.name
    for struct in (Config, Engine, Managed, Server, Key, Target, Timeouts, Probe)
    for field in msgspec.structs.fields(struct)
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.dates(),
    st.sampled_from(["fast", URL, *KINDS, "${PORT}"]),
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*KEYS, "fast", "5"]), inner, max_size=6)
    ),
)


class TestAnyText:
    @settings(deadline=None)
    @given(st.text() | st.text(string.printable) | st.text("\n :-{}[]&*!a|>'\"%@?<=~1.0_e\\xuU,#$", max_size=60))
    def test_text(self, text: str) -> None:
        failure(text)

    @settings(deadline=None)
    @given(TREES)
    def test_documents(self, tree: object) -> None:
        failure(yaml.safe_dump(tree))

    @settings(deadline=None)
    @given(st.dictionaries(st.sampled_from(["engines", "models", "server"]), TREES))
    def test_sections(self, tree: object) -> None:
        failure(yaml.safe_dump(tree))
