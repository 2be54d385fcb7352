"""What the server may know of a request: its key."""

from .v1 import routing_pb2 as pb

_SESSION_METADATA = ("session-id", "x-session-id")


def key_of(request, metadata):
    """The key of a request, by the names that engines use for its fields. Give a Router one of your own for others.

    request is the message, metadata a sequence of pairs. A session in the metadata comes before one in the message.
    """
    key = pb.RequestKey(
        request_id=_text(request, "request_id"),
        session=_session(metadata) or _text(request, "session_id"),
        model=_text(request, "model") or _text(request, "model_name"),
        adapter=_text(request, "lora_name") or _text(request, "adapter") or _text(request, "lora_id"),
        cache_salt=_text(request, "cache_salt") or _text(_field(request, "kv"), "cache_salt"),
    )
    tokens = _tokens(request)
    if tokens:
        key.token_ids.ids.extend(tokens)
    else:
        text = _text(request, "prompt") or _text(request, "text")
        if text:
            key.text = text
    return key


def hashed(key, model=""):
    """The same key with hashes in place of the prompt. model is the name that the replicas declare."""
    from . import hashes  # it needs xxhash, which who does not hash need not have

    seed = hashes.seed_for(model or key.model, key.adapter, key.cache_salt)
    kind = key.WhichOneof("prompt")
    blocks = pb.BlockHashes()
    if kind == "token_ids":
        ids = key.token_ids.ids
        blocks.hashes.extend(hashes.of_tokens(ids, seed))
        blocks.block_tokens, blocks.length = hashes.BLOCK_TOKENS, len(ids)
    elif kind == "text":
        blocks.hashes.extend(hashes.of_text(key.text, seed))
        blocks.block_bytes, blocks.length = hashes.BLOCK_BYTES, len(key.text.encode())
    else:
        return key
    key.block_hashes.CopyFrom(blocks)
    return key


def _session(metadata):
    for name, value in metadata or ():
        if name.lower().replace("_", "-") in _SESSION_METADATA and value:
            return value
    return ""


def _field(message, name):
    if message is None or name not in message.DESCRIPTOR.fields_by_name:
        return None
    return getattr(message, name)


def _text(message, name):
    value = _field(message, name)
    return value if isinstance(value, str) else ""


def _tokens(request):
    # SMG's dialects (vLLM, SGLang, TokenSpeed, MLX, TensorRT-LLM) have them one message deeper.
    for message in (request, _field(request, "tokenized")):
        for name in ("prompt_token_ids", "input_ids", "input_token_ids", "token_ids"):
            value = _field(message, name)
            ids = getattr(value, "ids", value)
            if ids:
                return ids
    return ()
