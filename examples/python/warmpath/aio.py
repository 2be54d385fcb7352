"""Interceptors for grpcio's asyncio API. Nothing here blocks the event loop.

    router = warmpath.aio.Router(grpc.aio.insecure_channel("127.0.0.1:4770"))
    channel = grpc.aio.insecure_channel("engines:50051", interceptors=router.interceptors)
"""

import asyncio

import grpc

from . import asking
from .key import key_of as default_key_of
from .v1 import routing_pb2 as pb


class Router:
    """Asks a look-aside server for every call, and calls replicas. For one event loop.

    Its arguments are those of warmpath.Router; server and what connect returns are channels of grpc.aio.
    """

    def __init__(self, server, deployment="", key_of=default_key_of, send_hashes=False, model="",
                 connect=grpc.aio.insecure_channel, ask_timeout=0.25):
        self._choose, self._report_life = asking.methods(server)
        self._deployment, self._timeout, self._connect = deployment, ask_timeout, connect
        self._key = lambda request, metadata: asking.build_key(key_of, send_hashes, model, request, metadata)
        self._replicas = {}  # channels by address
        self._calls = set()  # under way
        self._tasks = set()  # what nobody else holds: calls followed, reports under way
        self.interceptors = (_UnaryUnary(self), _UnaryStream(self))

    async def close(self):
        """Cancels the calls under way, closes the connections to replicas, and waits until the server was told."""
        for call in self._calls:
            call.cancel()
        replicas, self._replicas = self._replicas, {}
        for replica in replicas.values():
            await replica.close()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def attempts(self, details, request, deadline):
        """Yields a replica's channel and a Life for each attempt; nothing where the server cannot be asked."""
        key, tried = self._key(request, details.metadata), []
        for _ in range(asking.ATTEMPTS):
            try:
                question = asking.question(key, self._deployment, tried)
                answer = await self._choose(
                    question, timeout=deadline.left(self._timeout), metadata=asking.trace(details.metadata))
            except grpc.RpcError as error:
                if error.code() in asking.ANSWERS:
                    raise
                return
            tried.append(answer.replica.id)
            yield self._channel(answer.replica.address), asking.Life(answer, self._report)

    def _channel(self, address):
        if address not in self._replicas:
            self._replicas[address] = self._connect(address)
        return self._replicas[address]

    def watch(self, call, life, unary):
        """Tells the life how a call ended."""
        self._calls.add(call)
        self._keep(self._follow(call, life, unary))

    async def _follow(self, call, life, unary):
        code = await call.code()
        self._calls.discard(call)
        if unary and code == grpc.StatusCode.OK:
            life.answered()
        life.ended(code)

    def _keep(self, coroutine):
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _report(self, life):
        self._keep(self._send(life))

    async def _send(self, life):
        try:
            await self._report_life(pb.ReportLifeRequest(lives=[life]), timeout=5)
        except grpc.RpcError:
            pass  # the lease ends by itself


def _method(details):
    return details.method.decode() if isinstance(details.method, bytes) else details.method


def _options(details, deadline):
    return {
        "timeout": deadline.left(), "metadata": details.metadata, "credentials": details.credentials,
        "wait_for_ready": details.wait_for_ready,
    }


class _UnaryUnary(grpc.aio.UnaryUnaryClientInterceptor):
    def __init__(self, router):
        self._router = router

    async def intercept_unary_unary(self, continuation, details, request):
        method, call, deadline = _method(details), None, asking.Deadline(details.timeout)
        async for channel, life in self._router.attempts(details, request, deadline):
            call = channel.unary_unary(method, *asking.codec(method))(request, **_options(details, deadline))
            self._router.watch(call, life, unary=True)
            try:
                if await call.code() != grpc.StatusCode.UNAVAILABLE:
                    return call
            except asyncio.CancelledError:
                call.cancel()
                raise
        return call or await continuation(details, request)


class _UnaryStream(grpc.aio.UnaryStreamClientInterceptor):
    def __init__(self, router):
        self._router = router

    async def intercept_unary_stream(self, continuation, details, request):
        method, stream, deadline = _method(details), None, asking.Deadline(details.timeout)
        async for channel, life in self._router.attempts(details, request, deadline):
            call = channel.unary_stream(method, *asking.codec(method))(request, **_options(details, deadline))
            self._router.watch(call, life, unary=False)
            stream = _Stream(call, life)
            if await stream.begin():
                return stream
        return stream or await continuation(details, request)


class _Stream(grpc.aio.UnaryStreamCall):
    """A server-streaming call on a replica, whose first message may have been read before it is asked for."""

    def __init__(self, call, life):
        self._call, self._life = call, life
        self._messages = call.__aiter__()
        self._read = None  # the first message or error, until it is asked for

    async def begin(self):
        """Waits for the first message. False if another replica should be tried."""
        try:
            self._read = await self._next()
        except asyncio.CancelledError:
            self._call.cancel()
            raise
        except grpc.RpcError as error:
            self._read = error
            return error.code() != grpc.StatusCode.UNAVAILABLE
        return True

    async def _next(self):
        message = await anext(self._messages, grpc.aio.EOF)
        if message is not grpc.aio.EOF:
            self._life.message()
        return message

    async def read(self):
        if self._read is None:
            return await self._next()
        first, self._read = self._read, None
        if isinstance(first, grpc.RpcError):
            raise first
        return first

    async def __aiter__(self):
        while (message := await self.read()) is not grpc.aio.EOF:
            yield message

    def __del__(self):
        self._call.cancel()

    # The rest is the call's.

    def cancelled(self):
        return self._call.cancelled()

    def done(self):
        return self._call.done()

    def time_remaining(self):
        return self._call.time_remaining()

    def cancel(self):
        return self._call.cancel()

    def add_done_callback(self, callback):
        self._call.add_done_callback(lambda _: callback(self))

    async def initial_metadata(self):
        return await self._call.initial_metadata()

    async def trailing_metadata(self):
        return await self._call.trailing_metadata()

    async def code(self):
        return await self._call.code()

    async def details(self):
        return await self._call.details()

    async def wait_for_connection(self):
        return await self._call.wait_for_connection()
