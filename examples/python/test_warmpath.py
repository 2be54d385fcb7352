"""Run by tests/python_test.go, which starts what is in the environment and looks at what the server was told."""

import asyncio
import gc
import os
import unittest

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

import inference_pb2 as engine
import vllm_engine_pb2 as vllm_engine
import warmpath
import warmpath.aio
from warmpath import hashes, key

SERVER = os.environ.get("WARMPATH_SERVER", "")
WITHOUT = os.environ.get("WARMPATH_WITHOUT", "127.0.0.1:1")
UNARY = "/vllm.Inference/Generate"
STREAM = "/vllm.Inference/GenerateStream"
CODEC = (engine.GenerateRequest.SerializeToString, engine.GenerateResponse.FromString)
LONG = "a system prompt that is long enough for some blocks, " * 8


def request(prompt="hello", tokens=4, **fields):
    return engine.GenerateRequest(text=prompt, stopping={"max_new_tokens": tokens}, **fields)


def count(responses):
    return sum(response.outputs.num_tokens for response in responses)


class Sync(unittest.TestCase):
    def open(self, **options):
        self.server = grpc.insecure_channel(SERVER)
        self.router = warmpath.Router(self.server, ask_timeout=20, **options)
        self.channel = grpc.intercept_channel(grpc.insecure_channel(WITHOUT), *self.router.interceptors)
        return self.channel.unary_unary(UNARY, *CODEC), self.channel.unary_stream(STREAM, *CODEC)

    def tearDown(self):
        self.router.close()
        self.server.close()

    def test_calls(self):
        unary, stream = self.open()
        self.assertEqual(unary(request(), timeout=30).outputs.num_tokens, 4)
        self.assertEqual(unary.future(request(), timeout=30).result().outputs.num_tokens, 4)
        response, call = unary.with_call(request(), timeout=30)
        self.assertEqual((response.outputs.num_tokens, call.code()), (4, grpc.StatusCode.OK))
        call = stream(request(tokens=9), timeout=30, metadata=[("x-session-id", "s")])
        self.assertEqual(count(call), 9)
        self.assertEqual(call.code(), grpc.StatusCode.OK)

    def test_ends(self):
        _, stream = self.open()
        cancelled = stream(request(tokens=100_000), timeout=60)
        next(cancelled)
        cancelled.cancel()
        with self.assertRaises(grpc.RpcError):
            list(cancelled)
        abandoned = stream(request(tokens=100_000), timeout=60)
        next(abandoned)
        del abandoned
        with self.assertRaises(grpc.RpcError) as late:
            list(stream(request(tokens=100_000), timeout=5))
        self.assertEqual(late.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        with self.assertRaises(grpc.RpcError) as refused:
            list(stream(request(prompt=""), timeout=30))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.left = stream(request(tokens=100_000), timeout=60)  # it ends with the router
        next(self.left)

    def test_without(self):
        unary, stream = self.open()
        self.assertEqual(unary(request(), timeout=30).outputs.num_tokens, 4)
        self.assertEqual(count(stream(request(), timeout=30)), 4)

    def test_refused(self):
        unary, stream = self.open(deployment="nobody's")
        for call in (lambda: unary(request(), timeout=30), lambda: list(stream(request(), timeout=30))):
            with self.assertRaises(grpc.RpcError) as refused:
                call()
            self.assertEqual(refused.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_dead_replica(self):
        unary, stream = self.open()
        for n in range(4):
            self.assertEqual(unary(request(request_id="u%d" % n), timeout=30).outputs.num_tokens, 4)
            self.assertEqual(count(stream(request(request_id="s%d" % n), timeout=30)), 4)

    def test_hashes(self):
        unary, _ = self.open()
        unary(request(LONG, model="llama"), timeout=30)
        unary, _ = self.open(send_hashes=True)
        unary(request(LONG, model="llama"), timeout=30)


class Asyncio(unittest.IsolatedAsyncioTestCase):
    def open(self, ask_timeout=20, **options):
        self.server = grpc.aio.insecure_channel(SERVER)
        self.router = warmpath.aio.Router(self.server, ask_timeout=ask_timeout, **options)
        self.channel = grpc.aio.insecure_channel(WITHOUT, interceptors=self.router.interceptors)
        return self.channel.unary_unary(UNARY, *CODEC), self.channel.unary_stream(STREAM, *CODEC)

    async def asyncTearDown(self):
        await self.router.close()
        await self.channel.close()
        await self.server.close()

    async def test_calls(self):
        unary, stream = self.open()
        for _ in range(3):
            self.assertEqual((await unary(request(), timeout=30)).outputs.num_tokens, 4)
        call = stream(request(tokens=9), timeout=30, metadata=(("x-session-id", "s"),))
        self.assertEqual(count([response async for response in call]), 9)
        self.assertEqual(await call.code(), grpc.StatusCode.OK)

    async def test_ends(self):
        _, stream = self.open()
        cancelled = stream(request(tokens=100_000), timeout=60)
        await cancelled.read()
        cancelled.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await cancelled.read()
        abandoned = stream(request(tokens=100_000), timeout=60)
        await abandoned.read()
        del abandoned
        gc.collect()  # grpcio's own calls are cycles
        with self.assertRaises(grpc.RpcError) as late:
            async for _ in stream(request(tokens=100_000), timeout=5):
                pass
        self.assertEqual(late.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        with self.assertRaises(grpc.RpcError) as refused:
            await stream(request(prompt=""), timeout=30).read()
        self.assertEqual(refused.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.left = stream(request(tokens=100_000), timeout=60)  # it ends with the router
        await self.left.read()

    async def test_without(self):
        unary, stream = self.open()
        self.assertEqual((await unary(request(), timeout=30)).outputs.num_tokens, 4)
        self.assertEqual(count([response async for response in stream(request(), timeout=30)]), 4)

    async def test_refused(self):
        unary, stream = self.open(deployment="nobody's")
        for call in (unary(request(), timeout=30), stream(request(), timeout=30).read()):
            with self.assertRaises(grpc.RpcError) as refused:
                await call
            self.assertEqual(refused.exception.code(), grpc.StatusCode.NOT_FOUND)

    async def test_dead_replica(self):
        unary, stream = self.open()
        for n in range(4):
            self.assertEqual((await unary(request(request_id="u%d" % n), timeout=30)).outputs.num_tokens, 4)
            self.assertEqual(count([r async for r in stream(request(request_id="s%d" % n), timeout=30)]), 4)

    async def test_many(self):
        unary, stream = self.open()

        async def one(n):
            if n % 2:
                return (await unary(request("prompt %d" % n), timeout=60)).outputs.num_tokens
            return count([response async for response in stream(request("prompt %d" % n), timeout=60)])

        self.assertEqual(await asyncio.gather(*(one(n) for n in range(64))), [4] * 64)

    async def test_silent_server(self):
        """While the server keeps silent everything else goes on, and a call that is cancelled ends."""
        unary, stream = self.open(ask_timeout=60)
        calls = [unary(request(), timeout=60), stream(request(), timeout=60)]
        tasks = [asyncio.ensure_future(calls[0].code()), asyncio.ensure_future(calls[1].read())]
        for _ in range(10_000):
            await asyncio.sleep(0)
        self.assertFalse(any(task.done() for task in tasks))
        for call in calls:
            call.cancel()
        self.assertEqual(await tasks[0], grpc.StatusCode.CANCELLED)
        with self.assertRaises(asyncio.CancelledError):
            await tasks[1]


class Hashes(unittest.TestCase):
    """The hashes are those of docs/hashes.md."""

    def rows(self, name):
        page = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "hashes.md")
        with open(page, encoding="utf-8") as file:
            table = file.read().split("<!-- vectors: %s -->\n" % name)[1].split("\n\n")[0]
        rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
        self.assertTrue(rows)
        return rows

    def test_seeds(self):
        for model, adapter, salt, seed in self.rows("seed"):
            self.assertEqual("%016x" % hashes.seed_for(model, adapter, salt), seed)

    def test_tokens(self):
        for tokens, seed, want in self.rows("tokens"):
            got = hashes.of_tokens([int(token) for token in tokens.split()], int(seed, 16), 4)
            self.assertEqual(" ".join("%016x" % n for n in got), want)

    def test_texts(self):
        for text, seed, want in self.rows("text"):
            got = hashes.of_text(text, int(seed, 16), 8)
            self.assertEqual(" ".join("%016x" % n for n in got), want)

    def test_keys(self):
        asked = request("hello", model="m", lora_name="l", kv={"cache_salt": "c"}, session_id="s")
        got = warmpath.key_of(asked, [("Session_ID", "header")])
        self.assertEqual((got.model, got.adapter, got.cache_salt, got.session, got.text), ("m", "l", "c", "header", "hello"))
        got = key.hashed(got)
        self.assertEqual((got.text, len(got.block_hashes.hashes), got.block_hashes.length), ("", 1, 5))
        tokens = warmpath.key_of(engine.GenerateRequest(token_ids={"ids": range(20)}), None)
        self.assertEqual((list(tokens.token_ids.ids), tokens.session), (list(range(20)), ""))
        self.assertEqual(key.hashed(tokens).block_hashes.length, 20)
        self.assertEqual(key.hashed(warmpath.key_of(engine.GenerateRequest(), None)).WhichOneof("prompt"), None)


class Keys(unittest.TestCase):
    """The default key finds the token ids of every engine's requests."""

    def message(self, outer, inner):
        """A request {request_id, outer: {original_text, inner: [1, 2, 300]}} of a type of its own, without outer flat."""
        file = descriptor_pb2.FileDescriptorProto(name="%s_%s.proto" % (outer, inner), package="of_%s_%s" % (outer, inner))
        ids = file.message_type.add(name="Ids")
        ids.field.add(name="original_text", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
        ids.field.add(name=inner, number=2, type="TYPE_UINT32", label="LABEL_REPEATED")
        ids.field.add(name="request_id", number=3, type="TYPE_STRING", label="LABEL_OPTIONAL")
        request = file.message_type.add(name="Request")
        request.field.add(name="request_id", number=1, type="TYPE_STRING", label="LABEL_OPTIONAL")
        request.field.add(
            name=outer or "unused", number=2, type="TYPE_MESSAGE", label="LABEL_OPTIONAL", type_name=".%s.Ids" % file.package)
        pool = descriptor_pool.DescriptorPool()
        pool.Add(file)
        name = file.package + (".Request" if outer else ".Ids")
        made = message_factory.MessageFactory(pool).GetPrototype(pool.FindMessageTypeByName(name))(request_id="r")
        ids = getattr(made, outer) if outer else made
        ids.original_text = "for debugging"
        getattr(ids, inner).extend([1, 2, 300])
        return made

    def test_token_ids(self):
        """Issue 12.45: vLLM, SGLang, TokenSpeed and MLX by SMG, TensorRT-LLM, and flat ones."""
        for outer, inner in (("tokenized", "input_ids"), ("tokenized", "input_token_ids"), ("token_ids", "ids"),
                             ("", "input_ids"), ("", "prompt_token_ids")):
            got = warmpath.key_of(self.message(outer, inner), None)
            self.assertEqual((got.request_id, list(got.token_ids.ids), got.text), ("r", [1, 2, 300], ""), (outer, inner))

    def test_text(self):
        """Issue 12.45: VllmEngine takes text as well."""
        self.assertEqual(warmpath.key_of(vllm_engine.GenerateRequest(text="hello"), None).text, "hello")
        self.assertEqual(warmpath.key_of(vllm_engine.GenerateRequest(tokenized={}), None).WhichOneof("prompt"), None)


if __name__ == "__main__":
    unittest.main()
