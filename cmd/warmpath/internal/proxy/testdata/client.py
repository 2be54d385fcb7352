"""A client of grpc.testing.TestService without stubs: messages are bytes, in which the test finds the body."""

import sys
import threading

import grpc


def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def request(body):  # of unary and of streaming calls alike: payload is field 3, its body field 2
    return field(3, field(2, body))


def answer(body):  # payload is field 1
    return field(1, field(2, body))


def check(is_, want):
    assert is_ == want, f"{is_!r:.200} instead of {want!r:.200}"


def status(call):
    try:
        call()
    except grpc.RpcError as e:
        return e
    raise AssertionError("no error")


large = [(o, 64 << 20) for o in ("grpc.max_receive_message_length", "grpc.max_send_message_length")]
service, metadata = "/grpc.testing.TestService/", (("plain", "a"), ("raw-bin", b"\0\xff\1"))
with grpc.insecure_channel(sys.argv[1], options=large) as channel:
    unary = channel.unary_unary(service + "UnaryCall")
    output = channel.unary_stream(service + "StreamingOutputCall")
    inputs = channel.stream_unary(service + "StreamingInputCall")
    duplex = channel.stream_stream(service + "FullDuplexCall")

    # Metadata in both directions, and compression.
    for compression in grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate:
        got, call = unary.with_call(request(b"hello"), metadata=metadata, compression=compression, timeout=30)
        check(got, answer(b"hello"))
        header, trailer = dict(call.initial_metadata()), dict(call.trailing_metadata())
        check((header["plain"], header["raw-bin"]), ("a", b"\0\xff\1"))
        check((trailer["plain"], trailer["raw-bin"]), ("a", b"\0\xff\1"))

    # A status of a unary call has its message, details and trailer.
    e = status(lambda: unary(request(b"refuse"), metadata=metadata, timeout=30))
    check((e.code(), e.details()), (grpc.StatusCode.FAILED_PRECONDITION, "no such näme%"))
    check(dict(e.trailing_metadata())["raw-bin"], b"\0\xff\1")
    assert b"why" in dict(e.trailing_metadata())["grpc-status-details-bin"]
    e = status(lambda: channel.unary_unary("/no.such/Method")(b"", timeout=30))
    check(e.code(), grpc.StatusCode.UNIMPLEMENTED)

    # A stream of answers, and 10 MB both ways.
    check(list(output(request(b"3"), timeout=30)), [answer(b"3")] * 3)
    body = bytes(10 << 20)
    check(unary(request(body), timeout=30), answer(body))

    # Requests, none and many.
    check(inputs(iter([]), timeout=30), b"")
    check(inputs((field(1, field(2, b"1234567890")) for _ in range(100)), timeout=30), b"\x08" + varint(1000))

    # Question and answer in turn.
    turn = threading.Semaphore(1)

    def questions():
        for i in range(50):
            turn.acquire()
            yield request(b"%d" % i)

    got = []
    for message in duplex(questions(), timeout=30):
        got.append(message)
        turn.release()
    check(got, [answer(b"%d" % i) for i in range(50)])

    # Deadline and cancellation.
    e = status(lambda: unary(request(b"wait"), timeout=5))
    check(e.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
    call = output(request(b"wait"), timeout=30)
    check(next(call), answer(b"wait"))
    call.cancel()
    check(status(lambda: next(call)).code(), grpc.StatusCode.CANCELLED)
    print("good")
