"""What `sluice.yaml` may say, what it comes out as, and what the loader says about mistakes."""

from pathlib import Path

import pytest

from gateway.config.load import ConfigError, load_config
from gateway.config.schema import Config, Engine, Key, Managed, Probe, Server, Target, Timeouts
from tests.unit.config.cases import BAD, KINDS, ONE_ENGINE, URL, failure, parse


class TestGoodConfigs:
    def test_the_least_that_works_has_every_default(self) -> None:
        assert parse(ONE_ENGINE) == Config(engines={"fast": Engine(kind="llamacpp", url=URL)})

    def test_every_key_is_read(self) -> None:
        text = """
        engines:
          fast:
            kind: vllm
            url: https://gpu.local/v1
            models: [qwen, smollm2]
            concurrency: 8
            api_key: abc
            headers: {X-Team: blue, X-Empty: ""}
            transport: httpx
            timeouts: {connect: 1, first_byte: 2.5, ttft: 3e1, idle: .5, total: 1_000}
            probe: {interval: 6, timeout: 7}
          small:
            kind: llamacpp
            managed: {model: a.gguf, context: 8192, slots: 2, threads: 3, port: 9001}
        models:
          chat: [{engine: fast, model: qwen}, small]
        server:
          host: "::"
          port: 8000
          keys: [{name: alice, key: abcdefgh}]
          allow_unauthenticated: true
          max_body_bytes: 1_048_576
          max_header_bytes: 8192
          max_reply_bytes: 2048
          body_timeout: 1
          stall_timeout: 2
          drain_timeout: 3
        """
        assert parse(text) == Config(
            engines={
                "fast": Engine(
                    kind="vllm",
                    url="https://gpu.local/v1",
                    models=["qwen", "smollm2"],
                    concurrency=8,
                    api_key="abc",
                    headers={"X-Team": "blue", "X-Empty": ""},
                    transport="httpx",
                    timeouts=Timeouts(connect=1.0, first_byte=2.5, ttft=30.0, idle=0.5, total=1000.0),
                    probe=Probe(interval=6.0, timeout=7.0),
                ),
                "small": Engine(
                    kind="llamacpp", managed=Managed(model="a.gguf", context=8192, slots=2, threads=3, port=9001)
                ),
            },
            models={"chat": [Target(engine="fast", model="qwen"), Target(engine="small")]},
            server=Server(
                host="::",
                port=8000,
                keys=[Key(name="alice", key="abcdefgh")],
                allow_unauthenticated=True,
                max_body_bytes=1_048_576,
                max_header_bytes=8192,
                max_reply_bytes=2048,
                body_timeout=1.0,
                stall_timeout=2.0,
                drain_timeout=3.0,
            ),
        )

    @pytest.mark.parametrize(
        ("written", "targets"),
        [
            ("fast", [Target(engine="fast")]),
            ("[fast]", [Target(engine="fast")]),
            ("{engine: fast, model: m}", [Target(engine="fast", model="m")]),
            ("{engine: fast, model: }", [Target(engine="fast")]),
            ("[fast, {engine: fast, model: m}]", [Target(engine="fast"), Target(engine="fast", model="m")]),
            ("${ENGINE:-fast}", [Target(engine="fast")]),
        ],
    )
    def test_short_forms_of_a_model(self, written: str, targets: list[Target]) -> None:
        assert parse(f'{ONE_ENGINE}models:\n  small: {written}\n  "on": fast').models["small"] == targets

    @pytest.mark.parametrize(
        ("models", "target"),
        [
            ("[]", "{engine: fast, model: anything}"),  # the engine is asked
            ("[a, small]", "fast"),  # the name asked for
            ("[a]", "fast"),  # the only one
            ("[a, b]", "{engine: fast, model: b}"),
        ],
    )
    def test_targets_an_engine_can_serve(self, models: str, target: str) -> None:
        engines = f"engines:\n  fast: {{kind: vllm, url: {URL}, models: {models}}}\n"
        assert failure(f"{engines}models:\n  small: {target}") == ""

    @pytest.mark.parametrize(
        "url",
        [
            "http://localhost",
            "https://gpu.local:8443/v1/",
            "http://[::1]:8080",
            "http://my_service:80",
            "HTTP://10.0.0.1",
        ],
    )
    def test_urls(self, url: str) -> None:
        assert parse(f"engines: {{fast: {{kind: vllm, url: '{url}'}}}}").engines["fast"].url == url

    @pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "LOCALHOST", "::1"])
    def test_a_loopback_address_needs_no_keys(self, host: str) -> None:
        assert parse(f"{ONE_ENGINE}server: {{host: '{host}'}}").server.host == host

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gpu.local", "0", "127.0.0.1.example.org"])
    def test_any_other_address_needs_keys_or_a_clear_word(self, host: str) -> None:
        assert "not a loopback address" in failure(f"{ONE_ENGINE}server: {{host: '{host}'}}")
        assert failure(f"{ONE_ENGINE}server: {{host: '{host}', allow_unauthenticated: true}}") == ""
        assert failure(f"{ONE_ENGINE}server: {{host: '{host}', keys: [{{name: a, key: abcdefgh}}]}}") == ""

    def test_an_alias_repeats_a_section(self) -> None:
        text = f"""
        engines:
          a: {{kind: vllm, url: {URL}, timeouts: &patient {{idle: 900}}}}
          b: {{kind: vllm, url: {URL}, timeouts: *patient}}
        """
        assert parse(text).engines["b"].timeouts == Timeouts(idle=900.0)

    def test_quoted_text_is_text(self) -> None:
        text = f"engines: {{'yes': {{kind: vllm, url: {URL}, models: ['1e3', \"on\", '7', 'null']}}}}"
        assert parse(text).engines == {"yes": Engine(kind="vllm", url=URL, models=["1e3", "on", "7", "null"])}


class TestEnvironment:
    @pytest.mark.parametrize(
        ("written", "port"),
        [("${PORT}", 8100), ('"${PORT}"', 8100), ("${NONE:-9000}", 9000), ("${EMPTY:-9000}", 9000)],
    )
    def test_a_number_may_be_one_reference(self, written: str, port: int) -> None:
        assert parse(f"{ONE_ENGINE}server:\n  port: {written}").server.port == port

    def test_a_truth_value_may_be_one_reference(self) -> None:
        assert parse(f"{ONE_ENGINE}server:\n  allow_unauthenticated: ${{YES}}").server.allow_unauthenticated

    @pytest.mark.parametrize(
        ("written", "key"),
        [
            ("${TOKEN}", "env-secret-value"),
            ("a ${TOKEN}-${PORT}", "a env-secret-value-8100"),
            ("${DIGITS}", "12345678"),  # needs no quotes: it is text that is asked for
            ("${YES}", "true"),
            ("${NONE:-some default:-x}", "some default:-x"),
            ("${NONE:-}", None),
            ("${EMPTY}", None),
            ("$${TOKEN}", "${TOKEN}"),
            ("$${${PORT}}", "${8100}"),
            ("$TOKEN $$ {x}", "$TOKEN $$ {x}"),
        ],
    )
    def test_references_in_text(self, written: str, key: str | None) -> None:
        text = f"engines:\n  fast:\n    kind: vllm\n    url: {URL}\n    api_key: {written}\n"
        assert parse(text).engines["fast"].api_key == key

    def test_a_value_is_not_read_for_references_again(self) -> None:
        text = f"engines:\n  fast:\n    kind: vllm\n    url: {URL}\n    api_key: ${{A}}\n"
        assert parse(text, {"A": "${B}"}).engines["fast"].api_key == "${B}"


class TestMistakes:
    @pytest.mark.parametrize(("text", "messages"), BAD.values(), ids=BAD)
    def test_every_mistake_is_told_with_its_line(self, text: str, messages: str) -> None:
        assert failure(text).replace("sluice.yaml:", "").strip() == messages

    def test_a_problem_names_file_line_and_path(self) -> None:
        with pytest.raises(ConfigError) as caught:
            parse(f"{ONE_ENGINE}server:\n  port: 0\nfoo: bar\n")
        first, second = caught.value.problems
        assert (first.line, first.path) == (4, "server.port")
        assert (second.line, second.path) == (5, "")
        assert str(caught.value).splitlines() == [
            f"sluice.yaml:4: server.port: {first.message}",
            f"sluice.yaml:5: {second.message}",
        ]

    def test_an_empty_file_is_answered_with_one_that_works(self) -> None:
        _, _, example = failure("").partition("\n")
        assert list(parse(example).engines) == ["local"]

    def test_a_few_aliases_do_not_fill_the_memory(self) -> None:
        levels = "".join(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 9)}]\n" for i in range(1, 20))
        assert "too large" in failure(f"x0: &x0 a\n{levels}")

    def test_deep_nesting(self) -> None:
        assert "too deep" in failure("[" * 5000)

    def test_a_long_value_is_cut(self) -> None:
        assert len(failure(f"{ONE_ENGINE}server: {{port: {'x' * 1000}}}")) < 200

    @pytest.mark.parametrize(
        "text", ["a: \0", "a: '\ud800'", 'a: "\\ud800"', 'a: "\\UFFFFFFFF"', f"%YAML 1.{'9' * 5000}\n---\n"]
    )
    def test_characters_that_are_none(self, text: str) -> None:
        assert failure(text)


class TestFiles:
    def read(self, path: Path) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(path, environ={}, kinds=KINDS)
        return str(caught.value).removeprefix(str(path))

    def test_a_file_is_read_with_or_without_a_byte_order_mark(self, tmp_path: Path) -> None:
        path = tmp_path / "sluice.yaml"
        for encoding in ("utf-8", "utf-8-sig"):
            path.write_text(ONE_ENGINE, encoding)
            assert load_config(path, environ={}, kinds=KINDS) == parse(ONE_ENGINE)

    def test_problems_name_the_file(self, tmp_path: Path) -> None:
        path = tmp_path / "sluice.yaml"
        path.write_text("engines: 3")
        assert self.read(path).startswith(":1: engines: ")

    def test_a_missing_file(self, tmp_path: Path) -> None:
        assert self.read(tmp_path / "none.yaml") == ": there is no such file"

    def test_a_directory(self, tmp_path: Path) -> None:
        assert self.read(tmp_path) == ": this is a directory, not a file"

    def test_a_file_that_may_not_be_read(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(path: Path) -> bytes:
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(Path, "read_bytes", refuse)
        assert self.read(tmp_path / "sluice.yaml") == ": cannot be read: Permission denied"

    def test_a_path_that_is_none(self) -> None:
        assert self.read(Path("a\0b")) == ": cannot be read: not a valid path"

    @pytest.mark.parametrize(("raw", "line"), [("a\nb: \xe9\n".encode("latin-1"), 2), (ONE_ENGINE.encode("utf-16"), 1)])
    def test_another_encoding(self, tmp_path: Path, raw: bytes, line: int) -> None:
        path = tmp_path / "sluice.yaml"
        path.write_bytes(raw)
        assert self.read(path) == f":{line}: not UTF-8; save the file in that encoding"
