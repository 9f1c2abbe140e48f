"""`sluice simulate`: its file, the mistakes that are found in it, and what is printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.config.problems import ConfigError
from gateway.simulate.arrivals import Arrival, draw
from gateway.simulate.fleet import builds
from gateway.simulate.load import parse_simulation
from gateway.simulate.schema import Box
from tests.support.simulation import make_setup

CONFIG = """
engines:
  small: {kind: llamacpp, url: http://s, models: [tiny]}
  box: {kind: ollama, url: http://b}
  big: {kind: vllm, url: http://v, concurrency: 8}
models:
  two: [small, {engine: box, model: q4}]
server: {keys: [{name: alice, key: sk-alice-alice, class: high}, {name: bob, key: sk-bob-bob}]}
"""
POLICY = """
models:
  chat: {tiers: {first: small, second: big}, spill: 1}
"""
GOOD = """
workload:
  duration: 60
  rate: 1
  requests:
    talk: {model: chat, keys: [alice, bob], prompt: {median: 300, p95: 900}, output: 50}
  bursts:
    - {at: 10, requests: 5, of: talk}
engines:
  small: {decode: 20}
"""

MISTAKES = {
    "nothing": ("", 1, "this is the least that works"),
    "no YAML": ("workload:\n\tduration: 1", 2, "tab"),
    "no workload": ("engines: {small: {slots: 2}}", 1, "`workload` is missing"),
    "a misspelt key": (GOOD.replace("rate:", "rat:"), 4, "did you mean `rate`?"),
    "a rate that is none": (GOOD.replace("rate: 1", "rate: fast"), 4, "expected a number"),
    "an engine that there is not": (GOOD.replace("  small:", "  smal:"), 10, "no engine is named `smal`, did you mean"),
    "a model that the engine has not": (
        GOOD.replace("{decode: 20}", "{models: {tinyy: {decode: 20}}}"),
        10,
        "no model of this engine is named `tinyy`, did you mean `tiny`?",
    ),
    "a model that there is not": (GOOD.replace("model: chat", "model: chta"), 6, "did you mean `chat`?"),
    "no model in sight": (GOOD.replace("model: chat", "model: zzz"), 6, "there are `chat`, `tiny` and `two`"),
    "a key that there is not": (GOOD.replace("bob", "bbo"), 6, "no key is named `bbo`, did you mean `bob`?"),
    "no keys": (GOOD.replace("keys: [alice, bob], ", ""), 6, "`keys` is missing: the config asks for one"),
    "a burst of nothing known": (GOOD.replace("of: talk", "of: tlak"), 8, "did you mean `talk`?"),
    "a burst after the end": (GOOD.replace("at: 10", "at: 61"), 8, "after the end, 60 s"),
    "two middles": (GOOD.replace("p95: 900", "mean: 500"), 6, "`{median: N, p95: N}` or `{mean: N}`"),
    "no middle": (GOOD.replace("output: 50", "output: {max: 50}"), 6, "workload.requests.talk.output"),
    "a tail below the middle": (GOOD.replace("p95: 900", "p95: 200"), 6, "not below it"),
    "a length that is none": (GOOD.replace("output: 50", "output: long"), 6, "expected a whole number"),
    "an output of nothing": (GOOD.replace("output: 50", "output: 0"), 6, "a whole number from 1 to 1000000"),
    "an output that is not said": (
        GOOD.replace("output: 50", "output: null"),
        6,
        "expected a number, `{median: N, p95",
    ),
    "a list of lengths": (GOOD.replace("output: 50", "output: [50]"), 6, "expected a whole number, got a list"),
    "faster with others than alone": (
        GOOD.replace("{decode: 20}", "{decode: 20, decode_full: 30}"),
        10,
        "must not be above",
    ),
    "no requests": (GOOD.replace("rate: 1", "rate: 0").replace("requests: 5", "requests: 0"), 8, "at least 1"),
    "nothing asked": ("workload: {duration: 9, requests: {a: {model: chat, prompt: 1, output: 1}}}", 1, "a `rate`, or"),
    "too much": (GOOD.replace("rate: 1", "rate: 9000"), 2, "about 540005 requests, more than 200000: lower `rate`"),
    "an unknown class": (GOOD.replace("{model: chat", "{class: hihg, model: chat"), 6, "did you mean `high`?"),
}


def parse(text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        parse_simulation(text, "load.yaml", make_setup(CONFIG, POLICY), environ={})
    return caught.value


def drawn(text: str) -> list[Arrival]:
    return draw(parse_simulation(text, "load.yaml", make_setup(CONFIG, POLICY), environ={}).workload)


class TestFile:
    @pytest.mark.parametrize(("text", "line", "hint"), MISTAKES.values(), ids=MISTAKES)
    def test_a_mistake_is_told_with_its_place(self, text: str, line: int, hint: str) -> None:
        lines = str(parse(text)).splitlines()
        assert any(one.startswith(f"load.yaml:{line}: ") and hint in "\n".join(lines) for one in lines), lines

    def test_all_mistakes_are_told_at_once(self) -> None:
        wrong = GOOD.replace("model: chat", "model: zzz").replace("of: talk", "of: walk").replace("small", "smal")
        assert [problem.line for problem in parse(wrong).problems] == [6, 8, 10]

    def test_where_the_config_asks_for_no_key_any_name_is_one(self) -> None:
        open_door = make_setup(CONFIG.split("server:")[0], POLICY)
        parse_simulation(GOOD.replace("bob", "carol"), "load.yaml", open_door, environ={})

    def test_an_engine_is_as_usual_for_its_kind_but_for_what_is_told(self) -> None:
        setup = make_setup(CONFIG, POLICY)
        usual, told = builds(setup, {}), builds(setup, {"small": Box(decode=50, slots=3)})
        assert usual["big"] == told["big"]
        assert (told["small"].slots, told["small"].paces["tiny"].decode) == (3, 50)
        before, after = usual["small"].paces["tiny"], told["small"].paces["tiny"]
        assert after.decode_full / after.decode == pytest.approx(before.decode_full / before.decode)
        assert {name: list(build.paces) for name, build in usual.items()} == {
            "small": ["tiny"],
            "box": ["q4"],
            "big": ["big"],
        }

    def test_an_engine_that_gets_more_at_once_than_is_usual_has_slots_for_them(self) -> None:
        told = "engines: {a: {kind: KIND, url: http://a, concurrency: 4}}"
        slots = [builds(make_setup(told.replace("KIND", kind)), {})["a"].slots for kind in ("ollama", "vllm")]
        assert slots == [4, 64]

    def test_one_that_sluice_starts_has_the_slots_that_it_is_started_with(self) -> None:
        managed = "engines: {a: {kind: llamacpp, managed: {model: m.gguf, slots: 5}}}"
        assert builds(make_setup(managed), {})["a"].slots == 5


class TestArrivals:
    def test_they_come_as_often_as_the_rate_says_and_in_order(self) -> None:
        coming = drawn(GOOD.replace("rate: 1", "rate: 50"))
        assert len(coming) - 5 == pytest.approx(3000, rel=0.1)
        assert [one.at for one in coming] == sorted(one.at for one in coming)
        assert sum(one.at == 10 for one in coming) == 5
        assert {one.key for one in coming} == {"alice", "bob"}

    def test_lengths_are_spread_as_the_file_says(self) -> None:
        coming = drawn(GOOD.replace("rate: 1", "rate: 100"))
        above = [sum(one.prompt > limit for one in coming) / len(coming) for limit in (300, 900)]
        assert above == [pytest.approx(0.5, abs=0.03), pytest.approx(0.05, abs=0.01)]
        assert {one.output for one in coming} == {50}

    def test_an_exponential_length_has_its_mean_and_its_end(self) -> None:
        lengths = [one.output for one in drawn(GOOD.replace("rate: 1", "rate: 100").replace("50}", "{mean: 80}}"))]
        assert sum(lengths) / len(lengths) == pytest.approx(80, rel=0.05)
        capped = [one.output for one in drawn(GOOD.replace("50}", "{mean: 80, max: 100}}"))]
        assert max(capped) == 100 > min(capped) > 0

    def test_shares_and_prefixes(self) -> None:
        text = GOOD.replace("rate: 1", "rate: 50").replace(
            "  bursts:",
            "    more: {model: two, share: 3, keys: [bob], prompt: 10, output: 1, prefix: {tokens: 90, count: 4}}\n"
            "    mine: {model: two, share: 1, keys: [alice, bob], prompt: 10, output: 1,"
            " prefix: {tokens: 5, by_key: true}}\n"
            "  bursts:",
        )
        coming = drawn(text)
        of = {kind: [one for one in coming if one.kind == kind] for kind in ("talk", "more", "mine")}
        assert len(of["more"]) / len(coming) == pytest.approx(0.6, abs=0.03)
        assert {one.prompt for one in of["more"]} == {100}
        assert [len({one.prefix for one in of[kind]}) for kind in of] == [1, 4, 2]

    def test_another_rate_has_the_same_requests(self) -> None:
        few, many = (drawn(GOOD.replace("rate: 1", f"rate: {rate}")) for rate in (1, 2))
        asked = [[(one.key, one.prompt) for one in coming if one.at != 10] for coming in (few, many)]
        assert len(asked[0]) > 40
        assert asked[1][: len(asked[0])] == asked[0]


def invoke(folder: Path, *args: str, load: str = GOOD) -> Result:
    for name, text in (("sluice.yaml", CONFIG + "policy: policy.yaml\n"), ("policy.yaml", POLICY), ("load.yaml", load)):
        (folder / name).write_text(text)
    config = str(folder / "sluice.yaml")
    return CliRunner().invoke(main, ["simulate", str(folder / "load.yaml"), "--config", config, *args])


class TestCommand:
    def test_tables_for_people(self, tmp_path: Path) -> None:
        result = invoke(tmp_path)
        assert result.exit_code == 0
        first = [block.splitlines()[0].split()[0] for block in result.output.split("\n\n")]
        assert re.fullmatch(r"\d\d", first.pop(0))
        assert first == ["request", "tier", "engine", "key"]
        assert "chat -> first" in result.output
        columns = [len(line) for block in result.output.split("\n\n")[1:] for line in block.splitlines()]
        assert len(set(columns)) == 4

    def test_json_for_programs(self, tmp_path: Path) -> None:
        report = json.loads(invoke(tmp_path, "--json").output)
        assert report["requests"]["talk"]["requests"] == report["total"]["answered"] > 40
        assert report["engines"]["small"]["paces"]["tiny"]["decode"] == 20
        assert set(report["keys"]) == {"alice", "bob"}

    def test_a_rate_a_seed_and_a_policy_in_place_of_those_in_the_files(self, tmp_path: Path) -> None:
        other = tmp_path / "other.yaml"
        other.write_text("models: {chat: {tiers: {only: big}}}")
        more = json.loads(invoke(tmp_path, "--json", "--rate", "5").output)
        assert more["total"]["requests"] > 200
        assert invoke(tmp_path, "--seed", "1").output != invoke(tmp_path, "--seed", "2").output
        moved = json.loads(invoke(tmp_path, "--json", "--policy", str(other)).output)
        assert [tier["tier"] for tier in moved["tiers"]] == ["only"]

    @pytest.mark.parametrize("rate", ["nan", "inf", "-1", "100001", "fast"])
    def test_a_rate_that_is_none_is_refused(self, tmp_path: Path, rate: str) -> None:
        result = invoke(tmp_path, "--rate", rate)
        assert result.exit_code == 2
        assert "Invalid value for '--rate'" in result.output

    def test_a_load_so_light_that_nothing_comes_has_a_report_too(self, tmp_path: Path) -> None:
        quiet = GOOD.split("  bursts")[0]
        assert invoke(tmp_path, "--rate", "0.000001", load=quiet).output.startswith("0 requests in 60 s: 0 answered")

    @pytest.mark.parametrize(
        ("broken", "place"), [("load.yaml", "load.yaml:1: "), ("policy.yaml", "policy.yaml:1: "), ("gone.yaml", "gone")]
    )
    def test_what_is_wrong_is_told_with_its_file(self, tmp_path: Path, broken: str, place: str) -> None:
        bad = tmp_path / broken
        load = "x: 1" if broken == "load.yaml" else GOOD
        (tmp_path / "bad.yaml").write_text("x: 1")
        options = {"policy.yaml": ["--policy", str(tmp_path / "bad.yaml")], "gone.yaml": ["--policy", str(bad)]}
        result = invoke(tmp_path, *options.get(broken, []), load=load)
        assert result.exit_code == 1
        assert place.replace("policy.yaml", "bad.yaml") in result.output
        assert "Traceback" not in result.output

    def test_it_is_the_same_in_another_process(self, tmp_path: Path) -> None:
        expected = invoke(tmp_path, "--json").output
        for hash_seed in ("1", "2"):
            files = [str(tmp_path / "load.yaml"), "--config", str(tmp_path / "sluice.yaml")]
            done = subprocess.run(
                [sys.executable, "-m", "gateway.cli", "simulate", *files, "--json"],
                env=os.environ | {"PYTHONHASHSEED": hash_seed},
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == expected
