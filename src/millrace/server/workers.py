"""The query processes of a server: a few, each with one question at a time, ended when it takes too long.

Queries of clients run here and not in the server, because a database cannot always be interrupted, and because a
query that takes all of a processor or of its memory must not take it from those who send records.
"""

import asyncio
import json
import pickle
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress

from millrace.model.errors import Kind, MachineError, MillraceError, rebuilt
from millrace.server.asks import Ask, AskQuery, Head, Limits, Part
from millrace.server.worker import BODY, END, ERROR, HEAD, LENGTH, READY
from millrace.views.asked import too_slow
from millrace.views.store import ForgottenError, NoViewsError

_GRACE = 1.0
"""How many seconds a query process has to end a query itself, before it is killed."""
_START = 60.0
"""How many seconds a query process has to start."""
_WAITING = 16
"""How many questions may wait for each query process."""
_ENDED = MachineError("the query process ended before it had answered", "ask again, or select less")
_CLASSES: dict[str, type[ForgottenError | NoViewsError]] = {
    each.__name__: each for each in (ForgottenError, NoViewsError)
}


class Worker:
    """One query process."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process, self._reader, self._writer = process, reader, writer
        self.is_idle = True
        """Whether its last answer was read to the end, so that it can take another question."""

    @classmethod
    async def start(cls, url: str, limits: Limits) -> "Worker":
        """Start a process on the store at a URL."""
        ours, its = socket.socketpair()
        with its:
            # In a session of its own, it does not get the Ctrl-C of a terminal.
            command = [sys.executable, "-m", "millrace.server.worker"]
            process = subprocess.Popen(command, stdin=its.fileno(), start_new_session=True)
        worker = cls(process, *await asyncio.open_connection(sock=ours))
        try:
            async with asyncio.timeout(_START):
                await worker._send(pickle.dumps((url, limits)))
                kind, _ = await worker._frame()
        except BaseException:
            await worker.kill()
            raise
        assert kind == READY
        return worker

    async def parts(self, ask: Ask, seconds: float) -> AsyncGenerator[Part]:
        """The parts of an answer, each within the time that the whole answer has."""
        self.is_idle = False
        deadline = asyncio.get_running_loop().time() + seconds + _GRACE
        try:
            await self._send(pickle.dumps(ask))
            while True:
                async with asyncio.timeout_at(deadline):
                    kind, content = await self._frame()
                if kind == ERROR:
                    self.is_idle = True
                    raise _error(content)
                if kind == END:
                    self.is_idle = True
                    return
                assert kind in (HEAD, BODY)
                yield Head(**json.loads(content)) if kind == HEAD else content
        except TimeoutError:
            raise too_slow(seconds) from None

    async def kill(self) -> None:
        """End the process."""
        self.process.kill()
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()
        await asyncio.get_running_loop().run_in_executor(None, self.process.wait)

    @property
    def runs(self) -> bool:
        """Whether the process can take another question."""
        return self.is_idle and self.process.poll() is None

    async def _send(self, content: bytes) -> None:
        self._writer.write(len(content).to_bytes(4, "little") + content)
        with suppress(ConnectionError):  # reading will find the end
            await self._writer.drain()

    async def _frame(self) -> tuple[bytes, bytes]:
        try:
            kind, length = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            return kind, await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _ENDED from None


class Workers:
    """The query processes. They start when they are first needed, and stay."""

    def __init__(self, url: str, count: int = 4, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._url, self._count = url, count
        self._idle: list[Worker] = []
        self._all: set[Worker] = set()
        self._free = asyncio.Semaphore(count)
        self._waiting = 0

    async def answer(self, ask: Ask) -> AsyncGenerator[Part]:
        """The parts of an answer. Whoever stops reading them ends the query."""
        seconds = ask.what.seconds if isinstance(ask.what, AskQuery) else self.limits.seconds
        async with self._worker() as worker, aclosing(worker.parts(ask, seconds)) as parts:
            async for part in parts:
                yield part

    async def close(self) -> None:
        """End all processes."""
        for worker in tuple(self._all):
            await worker.kill()
        self._all.clear()
        self._idle.clear()

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Worker]:
        if self._waiting >= self._count * _WAITING:
            raise MachineError("too many queries are waiting", "ask again later")
        self._waiting += 1
        try:
            await self._free.acquire()
        finally:
            self._waiting -= 1
        try:
            worker = await self._taken()
            try:
                yield worker
            finally:
                if worker.runs:
                    self._idle.append(worker)
                else:
                    self._all.discard(worker)
                    await asyncio.shield(worker.kill())
        finally:
            self._free.release()

    async def _taken(self) -> Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.runs:
                return worker
            self._all.discard(worker)
            await worker.kill()
        try:
            worker = await Worker.start(self._url, self.limits)
        except TimeoutError:
            raise MachineError("the query process does not start", "ask again later") from None
        self._all.add(worker)
        return worker


def _error(content: bytes) -> MillraceError:
    """The error that a query process raised."""
    about = json.loads(content)
    kind = _CLASSES.get(about["class"])
    if kind is not None:
        return kind(about["problem"], about["advice"])
    return rebuilt(Kind(about["kind"]), about["problem"], about["advice"])
