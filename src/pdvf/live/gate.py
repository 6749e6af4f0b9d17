"""The door of a page: lets connections through to a server on loopback that could not tell its visitors apart.

A page that others than this machine can reach asks for a token, once: with `?token=...` in the address it is kept in a
cookie. And in either case another website that the visitor has open does not get in: a request that names its origin
must come from the page itself, and one to a loopback page must be addressed to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import re
import secrets
import socket
import threading
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

from pdvf.core.validation import ConfigError, require

COOKIE = "pdvf_token"
HEAD = 32 * 1024
"""Bytes that the head of a request may have."""
PATIENCE = 10.0
"""Seconds in which it must have come."""


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach this address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def inner_host() -> str:
    """An address of this machine for the server behind a gate, which no website that tries them all will hit on.

    Linux has 2**24 of them. Where there is only 127.0.0.1, the port has to be guessed.
    """
    host = "127." + ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))
    with contextlib.suppress(OSError), socket.create_server((host, 0)):
        return host
    return "127.0.0.1"


class Verdict(NamedTuple):
    """What becomes of a request: let through, or answered with this."""

    through: bool
    answer: bytes = b""


class Gate:
    """Listens on an address and passes what may pass on to a port of this machine."""

    def __init__(self, host: str, port: int, inner: int, inner_host: str = "127.0.0.1") -> None:
        self._inner, self._loopback = (inner_host, inner), is_loopback(host)
        self.token = "" if self._loopback else secrets.token_urlsafe(16)
        require(0 <= port < 65536, "--port", port, "a number from 0 to 65535")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"--host and --port are {host!r} and {port} ({error}), expected an address of this machine and a free "
                "port: give another --port"
            ) from None
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self._socket.getsockname()[1]}/" + (f"?token={self.token}" if self.token else "")
        self._loop, self._done = asyncio.new_event_loop(), asyncio.Event()
        self._worker = threading.Thread(target=self._run, daemon=True)
        self._worker.start()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:  # which ends what is open when it is left
            runner.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._visit, sock=self._socket, limit=HEAD)
        await self._done.wait()
        server.close()

    async def _visit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError, TimeoutError, asyncio.CancelledError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE)
            verdict = self.answer_to(head)
            if verdict.through:
                await self._pass_on(head, reader, writer)
            else:
                writer.write(verdict.answer)
                await writer.drain()
        writer.close()

    async def _pass_on(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request a connection, so that each is judged; a websocket is one request that lasts."""
        inner_reader, inner_writer = await asyncio.open_connection(*self._inner)
        websocket = re.search(rb"\r\nupgrade:\s*websocket", head, re.IGNORECASE) is not None
        inner_writer.write(head if websocket else _closing(head))
        try:
            if websocket:
                copies = (_copy(reader, inner_writer), _copy(inner_reader, writer))
                tasks = [asyncio.create_task(copy) for copy in copies]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in tasks:
                    task.cancel()
            else:
                await _copy(inner_reader, writer)
        finally:
            inner_writer.close()

    def answer_to(self, head: bytes) -> Verdict:
        """What becomes of a request with this head."""
        try:
            first, *lines = head.decode("ascii").split("\r\n")
            _, path, _ = first.split(" ")
            headers = {
                name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
            }
            origin, query = urlsplit(headers.get("origin", "")).netloc, urlsplit(path).query
        except ValueError:  # not ASCII, or no request
            return Verdict(False, _answer("400 Bad Request", "this is no request of a browser"))
        host = headers.get("host", "")
        if self._loopback and not is_loopback(re.sub(r":\d+$", "", host)):
            return Verdict(False, _answer("403 Forbidden", "this page is for this machine alone"))
        if "origin" in headers and origin != host:
            return Verdict(False, _answer("403 Forbidden", "another website may not use this page"))
        if not self.token:
            return Verdict(True)
        given = parse_qs(query).get("token", [""])[-1]
        if given and self._is_token(given):
            kept = f"Set-Cookie: {COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/\r\nLocation: /\r\n"
            return Verdict(False, _answer("303 See Other", "", kept))
        with contextlib.suppress(CookieError):
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
            if cookie is not None and self._is_token(cookie.value):
                return Verdict(True)
        words = "this page asks for a token: open the address that `pdvf` has printed, with ?token=... at its end"
        return Verdict(False, _answer("403 Forbidden", words))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def close(self) -> None:
        """Lets go of all visitors and takes no more."""
        self._loop.call_soon_threadsafe(self._done.set)
        self._worker.join(timeout=5.0)


def _closing(head: bytes) -> bytes:
    """A request after whose answer the connection ends."""
    kept = [line for line in head[:-4].split(b"\r\n") if not line.lower().startswith(b"connection:")]
    return b"\r\n".join([*kept, b"Connection: close"]) + b"\r\n\r\n"


def _answer(status: str, words: str, more: str = "") -> bytes:
    body = words.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n{more}\r\n".encode() + body


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Passes on whatever comes until it ends."""
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
