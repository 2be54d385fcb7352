"""Route gRPC calls to LLM replicas by way of warmpath's look-aside server.

Interceptors for grpcio: each call asks the server which replica to take (ChooseReplica, with a reservation), goes
straight to that replica over a connection that is kept, and tells the server when the prompt has been processed and
when the call has ended (ReportLife). Where the server cannot be asked, the call goes the way it went before: over the
channel that was intercepted.

    router = warmpath.Router(grpc.insecure_channel("127.0.0.1:4770"))
    channel = grpc.intercept_channel(grpc.insecure_channel("engines:50051"), *router.interceptors)

The same for asyncio is in warmpath.aio. Unary and server-streaming calls are routed; calls that stream requests go over
the intercepted channel. Tested with grpcio 1.51 and protobuf 4.21 (Debian 12's); needs xxhash to send hashes of prompts in
place of prompts.
"""

from .interceptor import Router
from .key import key_of

__all__ = ["Router", "key_of"]
