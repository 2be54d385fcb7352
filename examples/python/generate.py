"""Sends prompts to vLLM's Inference service by way of a look-aside server: python3 generate.py --server HOST:PORT PROMPT..."""

import argparse

import grpc

import inference_pb2 as engine
import warmpath


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--server", required=True, help="address of the look-aside server")
    flags.add_argument("--without", default="127.0.0.1:1", help="address to call where the server cannot be asked")
    flags.add_argument("--session", default="", help="id of the session")
    flags.add_argument("prompts", nargs="+")
    args = flags.parse_args()

    router = warmpath.Router(grpc.insecure_channel(args.server))
    channel = grpc.intercept_channel(grpc.insecure_channel(args.without), *router.interceptors)
    generate = channel.unary_stream(
        "/vllm.Inference/GenerateStream", engine.GenerateRequest.SerializeToString, engine.GenerateResponse.FromString)
    for prompt in args.prompts:
        request = engine.GenerateRequest(text=prompt, session_id=args.session, stopping={"max_new_tokens": 8})
        call = generate(request, timeout=60)
        tokens = sum(response.outputs.num_tokens for response in call)
        cached = dict(call.trailing_metadata()).get("x-engine-cached-tokens", "?")
        print("%d tokens, %s of the prompt's were cached" % (tokens, cached))
    router.close()


if __name__ == "__main__":
    main()
