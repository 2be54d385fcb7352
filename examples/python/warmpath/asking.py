"""What the two kinds of interceptors share: questions, reports, and how to call a replica."""

import random
import time

import grpc
from google.protobuf import descriptor_pool, message_factory, symbol_database

from . import key as keys
from .v1 import routing_pb2 as pb

_SERVICE = "/warmpath.v1.RoutingService/"

ATTEMPTS = 3

# With these the server's answer is the caller's: it was understood. With any other the server could not be asked.
ANSWERS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


def methods(server):
    """The server's two methods that are needed here, on a channel of either kind."""
    return (
        server.unary_unary(
            _SERVICE + "ChooseReplica", pb.ChooseReplicaRequest.SerializeToString, pb.ChooseReplicaResponse.FromString),
        server.unary_unary(
            _SERVICE + "ReportLife", pb.ReportLifeRequest.SerializeToString, pb.ReportLifeResponse.FromString),
    )


def question(key, deployment, tried):
    """Asks for a replica and a reservation of its own, for an attempt that prefers replicas not tried yet.

    The request id stays what it is in all attempts: a policy may go by it.
    """
    return pb.ChooseReplicaRequest(
        deployment=deployment, key=key, mode=pb.PICK_MODE_RESERVE, tried=tried, attempt=random.getrandbits(64))


def trace(metadata):
    """The W3C trace context of a call, for the question: the server's span is part of the same trace."""
    return [(name, value) for name, value in metadata or () if name in ("traceparent", "tracestate")]


class Deadline:
    """What is left of a call's timeout, the time for asking and for attempts that failed taken off."""

    def __init__(self, timeout):
        if timeout is not None and timeout > 1e9:  # grpcio 1.51's asyncio gives interceptors of streams a Unix time
            timeout -= time.time()
        self._at = None if timeout is None else time.monotonic() + timeout

    def left(self, at_most=None):
        if self._at is None:
            return at_most
        left = max(0, self._at - time.monotonic())
        return left if at_most is None else min(left, at_most)


def build_key(key_of, send_hashes, model, request, metadata):
    key = key_of(request, metadata)
    return keys.hashed(key, model) if send_hashes else key


def codec(method):
    """Serializer and deserializer of a method, from the descriptors that generated code has registered.

    An interceptor is told the method's name only, and calls it on another channel.
    """
    name = method.strip("/").replace("/", ".")
    try:
        found = descriptor_pool.Default().FindMethodByName(name)
    except KeyError:
        raise LookupError("%s: import the generated code of its service" % name) from None
    return _class_of(found.input_type).SerializeToString, _class_of(found.output_type).FromString


def _class_of(descriptor):
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(descriptor)
    return symbol_database.Default().GetPrototype(descriptor)  # before protobuf 4.22


class Life:
    """The life of one reservation. report takes a LifeReport and returns at once; ended may be called twice."""

    def __init__(self, answer, report):
        self._id = answer.reservation.id
        self._renew_after = answer.reservation.lease_ms / 3000
        self._report = report
        self._began = self._told = time.monotonic()
        self._first_us = 0
        self._over = False

    def message(self):
        """A response message came. The first drops the prompt's share of the load, later ones renew the lease."""
        now = time.monotonic()
        if not self._first_us:
            self._first_us = max(1, int((now - self._began) * 1e6))
            self._tell(pb.LIFE_STAGE_PREFILL_COMPLETE, now)
        elif now - self._told > self._renew_after:
            self._tell(pb.LIFE_STAGE_PROGRESS, now)

    def answered(self):
        """The only response message came. That the call has ended is told along with it."""
        self._first_us = max(1, int((time.monotonic() - self._began) * 1e6))

    def ended(self, code):
        """The call is over, with a grpc.StatusCode."""
        if not self._over:
            self._over = True
            outcome = pb.Outcome(code=code.value[0], first_message_us=self._first_us, sent=True)
            self._tell(pb.LIFE_STAGE_RELEASED, time.monotonic(), outcome)

    def _tell(self, stage, now, outcome=None):
        self._told = now
        self._report(pb.LifeReport(reservation=self._id, stage=stage, outcome=outcome))
