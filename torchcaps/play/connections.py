"""Connections of the playground: a time limit for headers and a cap per address, which uvicorn does not have."""

import asyncio
from collections import Counter
from typing import Any

SLOWEST_HEADERS = 10.0  # seconds from opening a connection, or from a request's first byte, to the end of its headers
PER_ADDRESS = 256  # open connections
TOO_MANY = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nretry-after: 1\r\nconnection: close\r\n\r\n"
    b"too many open connections from this address; close some\n"
)


def guarded_protocol() -> type:
    """Make the protocol class for uvicorn, which is imported here since it is optional."""
    from uvicorn.protocols.http.h11_impl import H11Protocol

    n_open: Counter[str] = Counter()

    class Guarded(H11Protocol):
        """HTTP/1.1 connection that closes itself when headers do not arrive in time."""

        address: str | None = None  # client of a counted connection
        waiting: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            address = self.client[0] if self.client else ""
            if n_open[address] >= PER_ADDRESS:
                transport.write(TOO_MANY)
                transport.close()
                return
            self.address = address
            n_open[address] += 1
            self._watch()

        def data_received(self, data: bytes) -> None:
            if self.address is None:
                return  # refused; what was sent before it noticed
            super().data_received(data)
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.address is not None:
                n_open[self.address] -= 1
                if not n_open[self.address]:
                    del n_open[self.address]
            if self.waiting is not None:
                self.waiting.cancel()
            super().connection_lost(exc)

        def _watch(self) -> None:
            """Start the clock unless a request is being answered; stop it when one is."""
            if self.cycle is not None and not self.cycle.response_complete:
                if self.waiting is not None:
                    self.waiting.cancel()
                    self.waiting = None
            elif self.waiting is None:
                self.waiting = self.loop.call_later(SLOWEST_HEADERS, self._close)

        def _close(self) -> None:
            self.waiting = None
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    return Guarded
