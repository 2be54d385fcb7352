"""As generate.py, all prompts at once: python3 generate_asyncio.py --server HOST:PORT PROMPT..."""

import argparse
import asyncio

import grpc

import inference_pb2 as engine
import warmpath.aio


async def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--server", required=True, help="address of the look-aside server")
    flags.add_argument("--without", default="127.0.0.1:1", help="address to call where the server cannot be asked")
    flags.add_argument("--ask-timeout", type=float, default=0.25, help="seconds that the server has for its answer")
    flags.add_argument("--session", default="", help="id of the session")
    flags.add_argument("prompts", nargs="+")
    args = flags.parse_args()

    async with grpc.aio.insecure_channel(args.server) as server:
        router = warmpath.aio.Router(server, ask_timeout=args.ask_timeout)
        async with grpc.aio.insecure_channel(args.without, interceptors=router.interceptors) as channel:
            generate = channel.unary_stream(
                "/vllm.Inference/GenerateStream", engine.GenerateRequest.SerializeToString, engine.GenerateResponse.FromString)

            async def one(prompt):
                request = engine.GenerateRequest(text=prompt, session_id=args.session, stopping={"max_new_tokens": 8})
                tokens = 0
                call = generate(request, timeout=60)
                async for response in call:
                    tokens += response.outputs.num_tokens
                cached = (await call.trailing_metadata()).get("x-engine-cached-tokens", "?")
                print("%d tokens, %s of the prompt's were cached" % (tokens, cached))

            await asyncio.gather(*(one(prompt) for prompt in args.prompts))
        await router.close()


if __name__ == "__main__":
    asyncio.run(main())
