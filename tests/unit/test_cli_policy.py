"""`sluice check` with a policy, `sluice explain` without a gateway, and `sluice replay`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main

ENGINES = """
engines:
  little: {kind: llamacpp, url: http://127.0.0.1:9, concurrency: 2, context: 4096}
  big: {kind: vllm, url: http://127.0.0.1:9, models: [qwen]}
policy: policy.yaml
"""
RULES = """
models:
  chat:
    tiers:
      small: little
      large: big
    rules:
      - {name: pictures, when: images > 0, reject: No pictures here.}
      - {name: long, when: prompt_tokens > 500, route: [large, small]}
      - {name: batch, when: 'header("x-team") == "batch"', class: low, cap: {max_tokens: 20}}
      - {name: night, when: hour < 6 && small.queue < 3, set: {max_tokens: 30}, route: [small]}
"""


def install(folder: Path, policy: str = RULES, config: str = ENGINES) -> Path:
    (folder / "policy.yaml").write_text(policy)
    path = folder / "sluice.yaml"
    path.write_text(config)
    return path


def invoke(*args: str | Path, stdin: str | bytes | None = None) -> Result:
    result = CliRunner().invoke(main, [*map(str, args)], input=stdin)
    assert "Traceback" not in result.output
    return result


class TestExamples:
    """`sluice check` tries them."""

    def check(self, folder: Path, *examples: str) -> tuple[int, str]:
        """The exit status, and what is said of a policy with these examples; its file's name is left out."""
        policy = RULES + "    examples:\n" + "".join(f"      - {{{example}}}\n" for example in examples)
        result = invoke("check", "-c", install(folder, policy))
        return result.exit_code, result.output.replace(f"{folder}/", "").strip()

    def test_good_ones_are_counted(self, tmp_path: Path) -> None:
        status, said = self.check(tmp_path, "expect: {tier: small}", "expect: {class: normal}")
        words = "2 engines, 0 model names, a policy for 1 model with 2 examples, nothing wrong."
        assert (status, said) == (0, f"sluice.yaml: {words}")

    @pytest.mark.parametrize(
        "example",
        [
            "expect: {tier: small}",
            "request: {prompt_tokens: 501}, expect: {tier: large, rule: long}",
            "request: {images: 1}, expect: {rejected: true}",
            "request: {images: 1}, expect: {rejected: true, rule: pictures}",
            "request: {headers: {X-Team: batch}}, expect: {tier: small, class: low, max_tokens: 20}",
            "request: {key_class: high}, expect: {class: high}",
            "request: {max_tokens: 300}, expect: {max_tokens: 300}",
            "request: {hour: 5, max_tokens: 9}, expect: {rule: night, max_tokens: 30}",
            "request: {hour: 5}, tiers: {small: {queue: 3}}, expect: {tier: small}",
            "tiers: {small: {healthy: false}}, expect: {tier: large}",
            "tiers: {small: {predicted_wait_s: 1.5}}, expect: {tier: small}",
            "tiers: {small: {predicted_wait_s: 2.5}}, expect: {tier: large}",
            "tiers: {small: {predicted_wait_s: 5}, large: {predicted_wait_s: 9}}, expect: {tier: small}",
        ],
    )
    def test_what_comes_out_as_expected(self, tmp_path: Path, example: str) -> None:
        status, said = self.check(tmp_path, example)
        assert status == 0, said

    @pytest.mark.parametrize(
        ("example", "mistake"),
        [
            ("expect: {tier: large}", "expected tier `large`, got tier `small` (no rule held)"),
            (
                "request: {prompt_tokens: 501}, expect: {tier: small}",
                "expected tier `small`, got tier `large` (by the rule `long`)",
            ),
            (
                "request: {hour: 3, headers: {X-Team: batch}}, expect: {rule: long, class: high}",
                "expected rule `long` and class `high`, got rule `night` and class `low` "
                "(by the rule `night`; `batch` held too)",
            ),
            (
                "request: {headers: {X-Team: batch}}, expect: {max_tokens: 50}",
                "expected max_tokens `50`, got max_tokens `20` (no rule routes it; `batch` held)",
            ),
            ("expect: {max_tokens: 5}", "expected max_tokens `5`, got no max_tokens (no rule held)"),
            (
                "request: {images: 1}, expect: {tier: small}",
                "expected not to be rejected, but the rule `pictures` rejects it: No pictures here.",
            ),
            (
                "request: {images: 1}, expect: {rejected: true, rule: long}",
                "expected to be rejected by the rule `long`, but the rule `pictures` rejects it: No pictures here.",
            ),
            ("expect: {rejected: true}", "expected to be rejected, got tier `small` (no rule held)"),
            ("expect: {rule: long}", "expected rule `long`, got no rule (no rule held)"),
            (
                "tiers: {small: {healthy: false}, large: {healthy: false}}, expect: {tier: small}",
                "expected tier `small`, got no tier (no rule held)",
            ),
        ],
    )
    def test_what_does_not_is_told_with_its_line(self, tmp_path: Path, example: str, mistake: str) -> None:
        status, said = self.check(tmp_path, "expect: {class: normal}", example)
        assert (status, said) == (1, f"Error: policy.yaml:14: models.chat.examples[1]: {mistake}")

    @pytest.mark.parametrize("beside", ["canary", "shadow"])
    def test_a_tier_that_is_tried_is_not_where_requests_usually_go(self, tmp_path: Path, beside: str) -> None:
        policy = RULES.replace("    rules:\n", f"    {beside}: {{tier: small}}\n    rules:\n")
        usual = "{expect: {tier: large}}"
        alone = "{request: {hour: 5}, expect: {tier: small, rule: night}}"  # a rule may still route there alone
        config = install(tmp_path, f"{policy}    examples: [{usual}, {alone}]\n")
        assert invoke("check", "-c", config).exit_code == 0

    def test_all_of_them_are_told_each_on_the_line_of_its_expectation(self, tmp_path: Path) -> None:
        policy = f"""{RULES}    examples:
      - expect: {{tier: large}}
      - request:
          prompt_tokens: 9
        expect:
          tier: large
"""
        result = invoke("check", "-c", install(tmp_path, policy))
        assert [line.split(": models")[0] for line in result.output.splitlines()] == [
            f"Error: {tmp_path}/policy.yaml:13",
            f"{tmp_path}/policy.yaml:16",
        ]

    def test_a_policy_that_is_not_there(self, tmp_path: Path) -> None:
        path = install(tmp_path)
        (tmp_path / "policy.yaml").unlink()
        result = invoke("check", "-c", path)
        assert (result.exit_code, result.output) == (1, f"Error: {tmp_path}/policy.yaml: there is no such file\n")


class TestExplain:
    """From the files alone."""

    def explain(self, folder: Path, *args: str, stdin: str | None = None) -> dict[str, Any]:
        result = invoke("explain", "-c", install(folder), "--json", *args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return dict(json.loads(result.output))

    def test_every_engine_is_taken_to_be_ready_and_idle(self, tmp_path: Path) -> None:
        said = self.explain(tmp_path, "--model", "chat", "--hour", "12")
        assert (said["live"], said["outcome"], said["at"]) == (
            False,
            "served",
            {"tier": "small", "engine": "little", "model": "chat"},
        )
        small, large = (tier["targets"] for tier in said["tiers"])
        assert (small[0]["context"], small[0]["capacity"], small[0]["in_flight"]) == (4096, 2, 0)
        assert large[0]["model"] == "qwen"

    def test_flags_are_facts(self, tmp_path: Path) -> None:
        given = {
            "--prompt-tokens": 9,
            "--max-tokens": 8,
            "--images": 0,
            "--tools": 3,
            "--dialect": "ollama",
            "--key": "k",
            "--key-class": "low",
            "--app": "aider",
            "--hour": 3,
        }
        flags = [str(part) for pair in given.items() for part in pair]
        said = self.explain(
            tmp_path, "--model", "chat", "--stream", "--structured", "--endpoint", "completions", *flags
        )
        facts = {f"--{name}".replace("_", "-"): value for name, value in said["facts"].items()}
        assert given.items() <= facts.items()
        assert (said["facts"]["stream"], said["facts"]["structured"]) == (True, True)
        assert said["facts"]["endpoint"] == "completions"
        assert said["verdict"]["class"] == "low"

    @pytest.mark.parametrize(
        ("endpoint", "body", "facts"),
        [
            (
                "chat",
                {"messages": [{"role": "user", "content": "x" * 4000}], "stream": True, "max_tokens": 7},
                {"dialect": "openai", "endpoint": "chat", "stream": True, "max_tokens": 7},
            ),
            (
                "/v1/messages",
                {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9, "tools": [{"name": "a"}]},
                {"dialect": "anthropic", "endpoint": "messages", "max_tokens": 9, "tools": 1},
            ),
            (
                "/api/chat",
                {"messages": [{"role": "user", "content": "hi"}], "format": "json"},
                {"dialect": "ollama", "endpoint": "chat", "stream": True, "structured": True},
            ),
            ("responses", {"input": "hi"}, {"dialect": "openai", "endpoint": "responses"}),
            ("/v1/embeddings", {"input": "hi"}, {"dialect": "openai", "endpoint": "embeddings"}),
        ],
    )
    def test_a_request_of_any_dialect(
        self, tmp_path: Path, endpoint: str, body: dict[str, Any], facts: dict[str, Any]
    ) -> None:
        file = tmp_path / "body.json"
        file.write_text(json.dumps({"model": "chat", **body}))
        said = self.explain(tmp_path, "--request", str(file), "--endpoint", endpoint)
        assert facts.items() <= said["facts"].items()
        assert said["facts"]["prompt_tokens"] > 0

    def test_flags_change_the_facts_of_a_request(self, tmp_path: Path) -> None:
        body = json.dumps({"model": "chat", "messages": [{"role": "user", "content": "hi"}]})
        args = ("--request", "-", "--prompt-tokens", "900", "--hour", "12")
        said = self.explain(tmp_path, *args, stdin=body)
        assert (said["facts"]["prompt_tokens"], said["verdict"]["rule"]) == (900, "long")

    @pytest.mark.parametrize(("flags", "priority"), [((), "low"), (("--key-class", "high"), "high")])
    def test_a_key_has_its_class(self, tmp_path: Path, flags: tuple[str, ...], priority: str) -> None:
        keys = "server: {keys: [{name: nightly, key: sk-12345678, class: low}]}\n"
        config = install(tmp_path, config=ENGINES + keys)
        result = invoke("explain", "-c", config, "--json", "--model", "chat", "--key", "nightly", *flags)
        assert json.loads(result.output)["facts"]["key_class"] == priority

    def test_headers(self, tmp_path: Path) -> None:
        said = self.explain(tmp_path, "--model", "chat", "--header", "X-Team=batch", "--hour", "12")
        assert (said["verdict"]["matched"], said["headers"]) == (["batch"], {"x-team": "batch"})

    def test_a_context_that_is_known_counts(self, tmp_path: Path) -> None:
        said = self.explain(tmp_path, "--model", "chat", "--prompt-tokens", "9000")
        assert [step["engine"] for step in said["plan"]] == ["big"]
        assert said["tiers"][0]["targets"][0]["left_out"] == "about 9000 tokens do not fit its context of 4096"

    def test_a_model_of_an_engine_s_own_has_no_policy(self, tmp_path: Path) -> None:
        said = self.explain(tmp_path, "--model", "qwen")
        assert (said["at"]["engine"], said["rules"], said["score"]) == ("big", [], "least_loaded")

    def test_as_text_it_says_what_was_assumed(self, tmp_path: Path) -> None:
        result = invoke("explain", "-c", install(tmp_path), "--model", "chat", "--hour", "12")
        lines = result.output.splitlines()
        assert lines[0] == "`chat` goes to tier `small`, engine `little`, model `chat`"
        assert lines[-1].startswith("Nobody was asked: every engine is taken to be ready, idle and warm")

    @pytest.mark.parametrize(
        ("args", "words"),
        [
            ([], "give --model, or a request's body with --request"),
            (["--model", "chta"], "`chta`"),
            (["--model", "chat", "--endpoint", "chats"], "'chats' is neither a path nor one of chat, completions"),
            (["--model", "chat", "--endpoint", "/v1/chat"], "No request goes to `/v1/chat`; the paths are /api/chat,"),
            (["--model", "chat", "--header", "x-team"], "'x-team' is not NAME=VALUE"),
            (["--model", "chat", "--hour", "24"], "--hour"),
            (["--model", "chat", "--prompt-tokens", "-1"], "--prompt-tokens"),
            (["--model", "chat", "--prompt-tokens", "1" + "0" * 400], "--prompt-tokens"),
            (["--request", "-"], "not JSON"),
            (["--request", "nowhere.json"], "nowhere.json"),
        ],
    )
    def test_what_cannot_be_explained(self, tmp_path: Path, args: list[str], words: str) -> None:
        result = invoke("explain", "-c", install(tmp_path), *args, stdin="{")
        assert result.exit_code != 0
        assert words in result.output

    def test_a_policy_with_a_mistake(self, tmp_path: Path) -> None:
        path = install(tmp_path, RULES.replace("images > 0", "imges > 0"))
        result = invoke("explain", "-c", path, "--model", "chat")
        assert result.exit_code == 1
        assert f"{tmp_path}/policy.yaml:8: " in result.output


def logged(number: int, tier: str | None, model: str = "chat", **decision: Any) -> str:
    """A line of the gateway's log."""
    record = {"event": "request", "request_id": f"r{number}", "model": model, "decision": {"hour": 12, **decision}}
    return json.dumps(record | ({"tier": tier} if tier else {})) + "\n"


class TestReplay:
    LOG = "".join(
        [
            logged(1, "small", prompt_tokens=100, rule=None),
            logged(2, "small", prompt_tokens=400, key_class="low", tools=2, structured=True),
            logged(3, "large", prompt_tokens=100),  # it had spilled
            logged(4, "large", prompt_tokens=900, rule="long"),
            logged(5, None, prompt_tokens=50, images=1),
            logged(6, "small", "other"),
            '{"event": "log", "message": "listening"}\n',
            '{"event": "request", "request_id": "r7", "model": "qwen", "status": 200}\n',
            "Traceback (most recent call last):\n",
            "\n",
        ]
    )
    NEW = RULES.replace("prompt_tokens > 500", "prompt_tokens > 300")

    def replay(self, folder: Path, *args: str | Path, log: str = LOG) -> str:
        result = invoke("replay", "-c", install(folder), *args, stdin=log)
        assert result.exit_code == 0, result.output
        return result.output

    def new(self, folder: Path, policy: str = NEW) -> Path:
        path = folder / "new.yaml"
        path.write_text(policy)
        return path

    def test_it_says_what_would_change(self, tmp_path: Path) -> None:
        assert self.replay(tmp_path, "--policy", self.new(tmp_path)) == REPLAYED

    def test_the_policy_of_the_config_is_held_against_an_older_log(self, tmp_path: Path) -> None:
        output = self.replay(tmp_path)
        assert "chat: large -> small: 1\n  r3: prompt_tokens 100, hour 12: by no rule\n" in output
        assert "policy in force" not in output

    def test_the_same_policy_changes_nothing(self, tmp_path: Path) -> None:
        log = logged(1, "small") + logged(2, "large", prompt_tokens=900)
        output = self.replay(tmp_path, "--policy", self.new(tmp_path, RULES), log=log)
        assert output.startswith("2 requests, 0 of them would go elsewhere.\n")

    def test_a_canary_is_not_drawn(self, tmp_path: Path) -> None:
        policy = self.new(tmp_path, RULES.replace("    rules:", "    canary: {tier: small}\n    rules:", 1))
        output = self.replay(tmp_path, "--policy", policy, log=logged(1, "small"))
        assert output.startswith("1 request, 1 of them would go elsewhere.\n\nchat: small -> large: 1\n")

    def test_a_log_in_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "sluice.log"
        path.write_bytes(self.LOG.encode() + b"\xff\xfe{}\n")
        result = invoke("replay", path, "-c", install(tmp_path))
        assert result.exit_code == 0
        assert "Lines left out, not a line of the log: 2." in result.output

    def test_examples_are_as_many_as_asked_for(self, tmp_path: Path) -> None:
        log = "".join(logged(number, "small", prompt_tokens=900) for number in range(9))
        for many in (0, 2):
            output = self.replay(tmp_path, "--examples", str(many), log=log)
            assert "chat: small -> large: 9\n" in output
            assert output.count("  r") == many

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (("prompt_tokens > 500", "stream"), "chat: large -> small: 1"),
            (("images > 0", 'key == "k"'), "chat: large -> (rejected): 1"),
            (("prompt_tokens > 500", 'dialect == "ollama" && endpoint == "embeddings"'), "chat: large, as before: 1"),
            (("prompt_tokens > 500", "max_tokens == 7 && hour == 22"), "chat: large, as before: 1"),
            (("prompt_tokens > 500", 'app == "aider" && key_class == "high"'), "chat: large, as before: 1"),
        ],
    )
    def test_every_fact_of_the_log_is_looked_at(self, tmp_path: Path, change: tuple[str, str], said: str) -> None:
        facts = {"max_tokens": 7, "dialect": "ollama", "endpoint": "embeddings", "key_class": "high", "app": "aider"}
        line = json.loads(logged(1, "large", **facts, hour=22)) | {"key": "k"}
        policy = self.new(tmp_path, RULES.replace(*change))
        assert said in self.replay(tmp_path, "--policy", policy, log=json.dumps(line))

    def test_without_any_policy(self, tmp_path: Path) -> None:
        path = install(tmp_path, config=ENGINES.replace("policy: policy.yaml\n", ""))
        result = invoke("replay", "-c", path, stdin="")
        assert (result.exit_code, result.output) == (1, f"Error: {path} names no policy: give one with --policy\n")

    def test_a_new_policy_with_a_mistake(self, tmp_path: Path) -> None:
        path = self.new(tmp_path, RULES.replace("images > 0", "imges > 0"))
        result = invoke("replay", "-c", install(tmp_path), "--policy", path, stdin="")
        assert result.exit_code == 1
        assert f"{path}:8: " in result.output


REPLAYED = """\
6 requests, 4 of them would go elsewhere.
Lines left out, without a decision: 1.
Lines left out, not a line of the log: 1.

chat: small, as before: 1

chat: small -> large: 1
  r2: prompt_tokens 400, tools 2, structured, key_class low, hour 12: by the rule `long`

chat: large -> small: 1
  of these, 1 not as the policy in force has it for idle engines: by spill, as a canary, or since an engine was away
  r3: prompt_tokens 100, hour 12: by no rule

chat: large, as before: 1

chat: (none) -> (rejected): 1
  r5: prompt_tokens 50, images 1, hour 12: by the rule `pictures`

other: small -> (no policy): 1
  r6: prompt_tokens 0, hour 12: by no rule

The log has no live facts: every engine was taken to be ready and idle, so that nothing spills.
Conditions look at what is not in the log: header("x-team"), small.queue.
"""
