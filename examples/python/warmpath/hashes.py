"""Hashes of prompts, as docs/hashes.md defines them: a server that is sent these never sees the prompt."""

import struct

import xxhash

_MASK = (1 << 64) - 1
_CHAIN_SEED = 1337

BLOCK_TOKENS = 16
BLOCK_BYTES = 64


def seed_for(model="", adapter="", salt=""):
    """The seed, which keeps models, adapters and tenants apart."""
    seed = _CHAIN_SEED
    for number, text in enumerate((adapter, salt, model)):
        if text:
            seed += xxhash.xxh3_64_intdigest(text.encode(), seed=number)
    return seed & _MASK


def of_tokens(tokens, seed, block=BLOCK_TOKENS):
    """The chained hashes of a prompt of token ids, the tail block's included."""
    return _chained(struct.pack("<%dI" % len(tokens), *tokens), seed, 4 * block)


def of_text(text, seed, block=BLOCK_BYTES):
    """The chained hashes of a prompt of text, the tail block's included."""
    return _chained(text.encode(), seed, block)


def _chained(data, seed, size):
    hashes = []
    for start in range(0, len(data), size):
        local = xxhash.xxh3_64_intdigest(data[start : start + size], seed=seed)
        if hashes:
            local = xxhash.xxh3_64_intdigest(struct.pack("<QQ", hashes[-1], local), seed=_CHAIN_SEED)
        hashes.append(local)
    return hashes
