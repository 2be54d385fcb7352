"""Sends prompts to vLLM by way of a look-aside server: python3 generate.py --server HOST:PORT PROMPT..."""

import argparse

import grpc

import inference_pb2 as inference
import vllm_engine_pb2 as engine
import warmpath


def send_inference(channel, prompt, session):
    """Calls vllm.Inference, the service of vLLM's Rust frontend. Returns the call and the number of tokens."""
    generate = channel.unary_stream("/vllm.Inference/GenerateStream",
                                    inference.GenerateRequest.SerializeToString, inference.GenerateResponse.FromString)
    request = inference.GenerateRequest(text=prompt, session_id=session, stopping={"max_new_tokens": 8})
    call = generate(request, timeout=60)
    return call, sum(response.outputs.num_tokens for response in call)


def send_engine(channel, prompt, session):
    """Calls vllm.grpc.engine.VllmEngine, which vllm serve --grpc runs. Its prompts come as token ids; here one a byte."""
    generate = channel.unary_stream("/vllm.grpc.engine.VllmEngine/Generate",
                                    engine.GenerateRequest.SerializeToString, engine.GenerateResponse.FromString)
    request = engine.GenerateRequest(tokenized={"input_ids": prompt.encode()}, sampling_params={"max_tokens": 8}, stream=True)
    call = generate(request, timeout=60, metadata=[("x-session-id", session)] if session else None)
    return call, sum(response.chunk.completion_tokens for response in call)


def main():
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--server", required=True, help="address of the look-aside server")
    flags.add_argument("--without", default="127.0.0.1:1", help="address to call where the server cannot be asked")
    flags.add_argument("--ask-timeout", type=float, default=0.25, help="seconds that the server has for its answer")
    flags.add_argument("--session", default="", help="id of the session")
    flags.add_argument("--service", default="Inference", choices=["Inference", "VllmEngine"], help="what the replicas speak")
    flags.add_argument("prompts", nargs="+")
    args = flags.parse_args()

    router = warmpath.Router(grpc.insecure_channel(args.server), ask_timeout=args.ask_timeout)
    channel = grpc.intercept_channel(grpc.insecure_channel(args.without), *router.interceptors)
    send = send_engine if args.service == "VllmEngine" else send_inference
    for prompt in args.prompts:
        call, tokens = send(channel, prompt, args.session)
        cached = dict(call.trailing_metadata()).get("x-engine-cached-tokens", "?")
        print("%d tokens, %s of the prompt's were cached" % (tokens, cached))
    router.close()


if __name__ == "__main__":
    main()
