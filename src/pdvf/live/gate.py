"""The door of a page: an address that it is served at, and who may see it there.

A page that others than this machine can reach asks for a token, once: with `?token=...` in the address it is kept in a
cookie. And in either case another website that the visitor has open does not get in: a request that names its origin
must come from the page itself, and one to a loopback page must be addressed to it.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pdvf.core.validation import ConfigError, require

COOKIE = "pdvf_token"


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach this address."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


class Answer(NamedTuple):
    """What a request is answered with."""

    status: HTTPStatus
    text: str
    more: Mapping[str, str] = {}

    @property
    def headers(self) -> dict[str, str]:
        """Those of the answer."""
        usual = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store", "Connection": "close"}
        return {**usual, "Content-Length": str(len(self.text.encode())), **self.more}


class Door:
    """Listens on an address of this machine; `refuse` is to be asked about every request that comes in by its socket.

    Servers are to read one request of a connection, so that each is judged; a websocket is one request that lasts.
    """

    def __init__(self, host: str, port: int) -> None:
        self._loopback = is_loopback(host)
        self.token = "" if self._loopback else secrets.token_urlsafe(16)
        require(0 <= port < 65536, "--port", port, "a number from 0 to 65535")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self.socket = socket.create_server((host, port), family=family)
        except OSError as error:
            raise ConfigError(
                f"--host and --port are {host!r} and {port} ({error}), expected an address of this machine and a free "
                "port: give another --port"
            ) from None
        name = f"[{host}]" if ":" in host else host
        self.url = f"http://{name}:{self.socket.getsockname()[1]}/" + (f"?token={self.token}" if self.token else "")

    def refuse(self, path: str, headers: Any) -> Answer | None:
        """What a request gets in place of the page; None where it is let in.

        Headers are those of `http.server` or of `websockets`, which both have `get_all`.
        """
        host, origin, cookies = (",".join(headers.get_all(name) or ()) for name in ("Host", "Origin", "Cookie"))
        try:
            comes_from, query = urlsplit(origin).netloc, urlsplit(path).query
        except ValueError:
            return Answer(HTTPStatus.BAD_REQUEST, "this is no request of a browser")
        if self._loopback and not is_loopback(re.sub(r":\d+$", "", host)):
            return Answer(HTTPStatus.FORBIDDEN, "this page is for this machine alone")
        if origin and comes_from != host:
            return Answer(HTTPStatus.FORBIDDEN, "another website may not use this page")
        if not self.token:
            return None
        if self._is_token(parse_qs(query).get("token", [""])[-1]):
            kept = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
            return Answer(HTTPStatus.SEE_OTHER, "", {"Set-Cookie": kept, "Location": "/"})
        with contextlib.suppress(CookieError):
            cookie = SimpleCookie(cookies).get(COOKIE)
            if cookie is not None and self._is_token(cookie.value):
                return None
        words = "this page asks for a token: open the address that `pdvf` has printed, with ?token=... at its end"
        return Answer(HTTPStatus.FORBIDDEN, words)

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(errors="replace"), self.token.encode())
