"""Interceptors for grpcio's synchronous API."""

import threading
import weakref

import grpc

from . import asking
from .key import key_of as default_key_of
from .v1 import routing_pb2 as pb


class Router:
    """Asks a look-aside server for every call, and calls replicas. Safe for use by many threads.

    server is a channel to the look-aside server, and stays the caller's. key_of makes the key of a request. With
    send_hashes prompts are hashed here, for the model that the replicas declare. connect opens a channel to an address.
    ask_timeout is in seconds; after it the call goes the way it went before.
    """

    def __init__(self, server, deployment="", key_of=default_key_of, send_hashes=False, model="",
                 connect=grpc.insecure_channel, ask_timeout=0.25):
        self._choose, self._report_life = asking.methods(server)
        self._deployment, self._timeout, self._connect = deployment, ask_timeout, connect
        self._key = lambda request, metadata: asking.build_key(key_of, send_hashes, model, request, metadata)
        self._lock = threading.Condition()  # guards what follows
        self._replicas = {}  # channels by address
        self._calls = 0  # whose end has not been reported
        self._reports = set()  # under way; a future that nobody holds is cancelled
        self.interceptors = (_UnaryUnary(self), _UnaryStream(self))

    def close(self):
        """Closes the connections to replicas, which ends the calls under way, and waits until the server was told."""
        with self._lock:
            replicas, self._replicas = self._replicas, {}
        for replica in replicas.values():
            replica.close()
        with self._lock:
            self._lock.wait_for(lambda: not self._calls and not self._reports, timeout=10)

    def attempts(self, details, request, deadline):
        """Yields a replica's channel and a Life for each attempt; nothing where the server cannot be asked."""
        key, tried = self._key(request, details.metadata), []
        for _ in range(asking.ATTEMPTS):
            try:
                question = asking.question(key, self._deployment, tried)
                answer = self._choose(
                    question, timeout=deadline.left(self._timeout), metadata=asking.trace(details.metadata))
            except grpc.RpcError as error:
                if error.code() in asking.ANSWERS:
                    raise
                return
            tried.append(answer.replica.id)
            yield self._channel(answer.replica.address), asking.Life(answer, self._report)

    def _channel(self, address):
        with self._lock:
            if address not in self._replicas:
                self._replicas[address] = self._connect(address)
            return self._replicas[address]

    def _report(self, life):
        future = self._report_life.future(pb.ReportLifeRequest(lives=[life]), timeout=5)
        with self._lock:
            self._reports.add(future)
        future.add_done_callback(self._reported)

    def _reported(self, future):
        with self._lock:
            self._reports.discard(future)
            self._lock.notify_all()

    def watch(self, call, life, unary):
        """Tells the life how a call ended, without keeping one alive that nobody reads any more."""
        weak = weakref.ref(call)

        def ended():
            call = weak()
            code = call.code() if call else grpc.StatusCode.CANCELLED
            if unary and code == grpc.StatusCode.OK:
                life.answered()
            life.ended(code)
            with self._lock:
                self._calls -= 1
                self._lock.notify_all()

        with self._lock:
            self._calls += 1
        if not call.add_callback(ended):
            ended()


def _options(details, deadline):
    return {
        "timeout": deadline.left(), "metadata": details.metadata, "credentials": details.credentials,
        "wait_for_ready": details.wait_for_ready, "compression": details.compression,
    }


class _UnaryUnary(grpc.UnaryUnaryClientInterceptor):
    def __init__(self, router):
        self._router = router

    def intercept_unary_unary(self, continuation, details, request):
        call, deadline = None, asking.Deadline(details.timeout)
        for channel, life in self._router.attempts(details, request, deadline):
            serialize, deserialize = asking.codec(details.method)
            call = channel.unary_unary(details.method, serialize, deserialize).future(request, **_options(details, deadline))
            self._router.watch(call, life, unary=True)
            if call.code() != grpc.StatusCode.UNAVAILABLE:  # it waits for the end
                return call
        return call or continuation(details, request)


class _UnaryStream(grpc.UnaryStreamClientInterceptor):
    def __init__(self, router):
        self._router = router

    def intercept_unary_stream(self, continuation, details, request):
        return _Stream(self._router, continuation, details, request)


class _Stream:
    """A server-streaming call that moves to another replica as long as no message has come."""

    def __init__(self, router, continuation, details, request):
        self._router, self._details, self._request = router, details, request
        self._deadline = asking.Deadline(details.timeout)
        self._attempts = router.attempts(details, request, self._deadline)
        self._life, self._received = None, False
        self._call = self._open() or continuation(details, request)

    def _open(self):
        for channel, life in self._attempts:
            serialize, deserialize = asking.codec(self._details.method)
            start = channel.unary_stream(self._details.method, serialize, deserialize)
            call = start(self._request, **_options(self._details, self._deadline))
            self._router.watch(call, life, unary=False)
            self._life = life
            return call
        return None

    def __iter__(self):
        return self

    def __next__(self):
        while True:
            try:
                message = next(self._call)
            except grpc.RpcError as error:
                if self._received or self._life is None or error.code() != grpc.StatusCode.UNAVAILABLE:
                    raise
                again = self._open()
                if again is None:
                    raise
                self._call = again
                continue
            self._received = True
            if self._life:
                self._life.message()
            return message

    def __getattr__(self, name):  # cancel, code, metadata and the like
        return getattr(self._call, name)
