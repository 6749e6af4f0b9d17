"""viser behind a door: its pages are for those whom the door lets in."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import viser
import websockets.asyncio.server
import websockets.datastructures
from websockets.http11 import Response

from pdvf.core.validation import ConfigError
from pdvf.live.gate import Door


class Server(viser.ViserServer):
    """viser behind a door; it would otherwise publish a page for any visitor who asks for a share address."""

    def __init__(self, door: Door, label: str) -> None:
        serve, guarded = websockets.asyncio.server.serve, []

        def serve_behind_door(handler: Any, host: str, port: int, *, process_request: Any, **options: Any) -> Any:
            """In place of what viser calls: the same, on the door's socket and for those whom the door lets in."""
            guarded.append(door)

            def process(connection: Any, request: Any) -> Any:
                refused = door.refuse(request.path, request.headers)
                if refused is None:
                    return process_request(connection, request)
                headers = websockets.datastructures.Headers(refused.headers)
                return Response(refused.status, refused.status.phrase, headers, refused.text.encode())

            return serve(handler, sock=door.socket, process_request=process, **options)

        logging.getLogger("websockets.server").setLevel(logging.CRITICAL)  # anybody may knock with what is no request
        websockets.asyncio.server.serve = serve_behind_door
        try:
            with _without_address():
                super().__init__(host="127.0.0.1", port=0, label=label, verbose=False)
        finally:
            websockets.asyncio.server.serve = serve
        if not guarded:
            self.stop()
            raise ConfigError(f"viser {viser.__version__} serves pages in a way of its own, expected viser 1.1")

    def request_share_url(self, verbose: bool = True) -> str | None:
        """Does nothing: pages stay where they are."""
        del verbose

    def stop(self) -> None:
        """Ends it."""
        with _without_address():
            super().stop()


@contextlib.contextmanager
def _without_address() -> Iterator[None]:
    """viser prints an address without the token."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
