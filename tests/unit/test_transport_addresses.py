"""How every transport finds an engine, and how it makes sure by TLS that it is the right one."""

import asyncio
import socket
import ssl

import pytest
import trustme

from gateway.upstream.http import httpx
from tests.support.engine import ScriptedEngine, Step
from tests.support.sse import SSE_HEAD, chunk, reply, sse_reply
from tests.support.transports import TRANSPORTS, fetch, make_transport

pytestmark = pytest.mark.anyio

Transport = httpx.AsyncBaseTransport
OK = reply(b"ok")


class TestAddresses:
    @pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "HTTPS_PROXY"])
    async def test_proxies_of_the_environment_are_not_used(
        self, transport: Transport, monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "http://127.0.0.1:1")
        async with ScriptedEngine([OK]) as engine:
            assert (await fetch(transport, engine.url)).body == b"ok"
            client = httpx.AsyncClient(transport=transport)
            assert (await client.post(engine.url, json={})).text == "ok"

    async def test_localhost_when_the_engine_listens_on_ipv4_only(self, transport: Transport) -> None:
        async with ScriptedEngine([OK]) as engine:
            assert (await fetch(transport, f"http://localhost:{engine.port}/")).body == b"ok"
        assert engine.requests[0].headers.all("host") == [f"localhost:{engine.port}"]

    async def test_ipv6(self, transport: Transport) -> None:
        host = "::1" if has_ipv6() else "127.0.0.1"
        async with ScriptedEngine([OK], host=host) as engine:
            assert (await fetch(transport, engine.url)).body == b"ok"
        assert engine.requests[0].headers.all("host") == [engine.url.removeprefix("http://")]


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def server_tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize("name", TRANSPORTS)
class TestTls:
    async def test_a_trusted_engine(self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
        body = b"x" * 500_000
        async with (
            make_transport(name, verify=trusting(authority)) as transport,
            ScriptedEngine([[reply(body)], [sse_reply(b"a")]], tls=server_tls) as engine,
        ):
            assert (await fetch(transport, engine.url, body)).body == body
            assert (await fetch(transport, engine.url)).body == b"a"
        assert len(engine.connections) == 1
        assert engine.requests[0].body == body

    async def test_a_reply_that_is_cut(self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext) -> None:
        async with (
            make_transport(name, verify=trusting(authority)) as transport,
            ScriptedEngine([SSE_HEAD, chunk(b"a"), 0.02, Step.FIN], tls=server_tls) as engine,
        ):
            with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
                await fetch(transport, engine.url)

    async def test_an_engine_of_another_authority(
        self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext
    ) -> None:
        async with (
            make_transport(name, verify=trusting(trustme.CA())) as transport,
            ScriptedEngine([OK], tls=server_tls) as engine,
        ):
            with pytest.raises(httpx.ConnectError):
                await fetch(transport, engine.url)
        assert engine.requests == []

    async def test_an_engine_of_another_name(
        self, name: str, authority: trustme.CA, server_tls: ssl.SSLContext
    ) -> None:
        async with (
            make_transport(name, verify=trusting(authority)) as transport,
            ScriptedEngine([OK], tls=server_tls) as engine,
        ):
            with pytest.raises(httpx.ConnectError):
                await fetch(transport, f"https://localhost:{engine.port}")
        assert engine.requests == []

    async def test_an_engine_that_is_not_checked(self, name: str, server_tls: ssl.SSLContext) -> None:
        async with make_transport(name, verify=False) as transport, ScriptedEngine([OK], tls=server_tls) as engine:
            assert (await fetch(transport, engine.url)).body == b"ok"

    async def test_an_engine_that_never_shakes_hands(self, name: str, authority: trustme.CA) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            async with make_transport(name, verify=trusting(authority)) as transport:
                with pytest.raises(httpx.ConnectTimeout):
                    await fetch(transport, f"https://127.0.0.1:{listener.getsockname()[1]}", connect=0.2)

    async def test_an_engine_without_tls(self, name: str, authority: trustme.CA) -> None:
        async def speak_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(OK)
            await reader.read()
            writer.close()

        async with (
            await asyncio.start_server(speak_first, "127.0.0.1", 0) as server,
            make_transport(name, verify=trusting(authority)) as transport,
        ):
            with pytest.raises(httpx.ConnectError):
                await fetch(transport, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
