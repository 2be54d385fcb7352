"""Publishes KV events as vLLM does, with libzmq and msgpack: for tests of subscribers.

    zmq_publisher.py ENCODING REPLAY

ENCODING is how a batch is written: "array" (batch and events are arrays, fields at the end left out), "mixed" (events are
maps) or "map" (both are). REPLAY is the form of a replay's frames: "old" ([seq, payload], end [-1, ""]) or "new" ([topic, seq,
payload], end ["", -1, ""]). The first line it writes has the ports of the PUB and the ROUTER socket. Each line that it reads
is a batch in JSON: {"events": [{"type": ..., ...}], "lost": true}; one that is lost is kept for replays but not published. For each it writes
the batch's number.
"""

import collections
import json
import sys
import time

import msgpack
import zmq

TOPIC = b"kv@here@model"
END = (-1).to_bytes(8, "big", signed=True)

# The order of the fields in arrays.
FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys"),
    "BlockRemoved": ("block_hashes", "medium"),
    "AllBlocksCleared": (),
}


def encoded_hash(encoding, block_hash):
    if block_hash is None:
        return None
    if encoding == "map":  # sha256, of which the last eight bytes tell blocks apart here
        return b"\x5a" * 24 + block_hash.to_bytes(8, "big")
    return block_hash


def encoded_event(encoding, event):
    kind = event["type"]
    fields = {name: event[name] for name in FIELDS[kind] if name in event}
    if "block_hashes" in fields:
        fields["block_hashes"] = [encoded_hash(encoding, h) for h in fields["block_hashes"]]
    if "parent_block_hash" in fields:
        fields["parent_block_hash"] = encoded_hash(encoding, fields["parent_block_hash"])
    if encoding != "array":
        return {"type": kind, **fields}
    values = [fields.get(name) for name in FIELDS[kind]]
    while values and values[-1] is None:  # as msgspec leaves defaults out
        values.pop()
    return [kind, *values]


def payload(encoding, events):
    events = [encoded_event(encoding, event) for event in events]
    if encoding == "map":
        return msgpack.packb({"ts": time.time(), "events": events, "data_parallel_rank": 0})
    return msgpack.packb([time.time(), events, 0])


def answer(replay, form, kept):
    client, empty, start = replay.recv_multipart()
    for number, batch in kept:
        if number >= int.from_bytes(start, "big"):
            frames = [number.to_bytes(8, "big"), batch]
            replay.send_multipart([client, empty] + ([TOPIC] if form == "new" else []) + frames)
    replay.send_multipart([client, empty] + ([b""] if form == "new" else []) + [END, b""])


def main():
    encoding, form = sys.argv[1:]
    context = zmq.Context()
    publisher, replay = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
    publisher.set_hwm(100_000)
    print(publisher.bind_to_random_port("tcp://127.0.0.1"), replay.bind_to_random_port("tcp://127.0.0.1"), flush=True)
    kept, number = collections.deque(maxlen=10_000), 0
    poller = zmq.Poller()
    poller.register(replay, zmq.POLLIN)
    poller.register(sys.stdin.fileno(), zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if replay in ready:
            answer(replay, form, kept)
        if sys.stdin.fileno() in ready:
            line = sys.stdin.buffer.raw.readline()
            if not line:
                context.destroy(linger=0)
                return
            batch = json.loads(line)
            data = payload(encoding, batch["events"])
            kept.append((number, data))
            if not batch.get("lost"):
                publisher.send_multipart([TOPIC, number.to_bytes(8, "big"), data])
            print(number, flush=True)
            number += 1


if __name__ == "__main__":
    main()
